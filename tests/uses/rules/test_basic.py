"""Dense and Embedding against the oracle, in every way to run them."""

import keras
import numpy as np
import pytest

import keras_pergrad as kpg
from keras_pergrad.uses.op_rules import op_rule
from keras_pergrad.uses.weight_paths import path_rule
from tests.uses.rules.exact import IDS, RUNS, assert_exact, normal, randomized

layers = keras.layers


def _model():
    """Every way to use both layers, in one model."""
    ids, values = keras.Input((4,), dtype="int32"), keras.Input((3, 4))
    masked = layers.Embedding(7, 3, mask_zero=True)(ids)
    masked = layers.GlobalAveragePooling1D()(masked)
    plain = layers.Flatten()(layers.Embedding(7, 3)(ids))
    rows = layers.Dense(3, "tanh", use_bias=False)(plain)
    positions = layers.Flatten()(layers.Dense(3, "tanh")(values))
    joined = layers.Concatenate()([masked, rows, positions])
    return randomized(keras.Model([ids, values], layers.Dense(2)(joined)))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("run", RUNS)
def test_is_the_oracles(run):
    x = [IDS, normal(5, 3, 4)]
    fewer = [[part[:n] for part in x] for n in (1, 2)]
    assert_exact(_model(), x, run=run, others=fewer)


@pytest.mark.parametrize(
    ("jit_compile", "regularizer"),
    [(True, None), (False, keras.regularizers.L2(1e-12))],
)
def test_negative_ids_train_as_in_keras(jit_compile, regularizer):
    """XLA drops ids out of range, and a regulariser makes slices dense."""
    found = []
    clipped = kpg.Vectorized(kpg.ClippedMean(1e9))
    for mode in ("batch", "vectorized", clipped):
        keras.utils.set_random_seed(1)
        layer = layers.Embedding(7, 3, embeddings_regularizer=regularizer)
        inputs = keras.Input((4,), dtype="int32")
        x = layers.GlobalAveragePooling1D()(layer(inputs))
        model = kpg.PerGradModel(inputs, layers.Dense(2)(x))
        model.compile(
            keras.optimizers.SGD(1.0),
            "mse",
            gradient_mode=mode,
            jit_compile=jit_compile and mode != "batch",
        )
        model.train_on_batch(IDS, np.ones((5, 2), "float32"))
        found.append(model.get_weights()[0])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[2], found[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("rule", "known"), [(op_rule, "MatMul"), (path_rule, "Reshape")]
)
def test_a_second_rule_of_an_op_is_an_error(rule, known):
    with pytest.raises(ValueError, match=f"op {known} has a rule already"):
        rule("NeverSeen", known)(lambda *args: None)
