"""What mixes samples is refused, whatever the values; sound twins are exact."""

import re

import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests import oracle
from tests.marks import few
from tests.proof import chosen_cases, index_cases  # noqa: F401
from tests.proof.fits import fit, fit_privately, refusal
from tests.proof.mixing_cases import MIXING, SOUND, product, stacked

pytestmark = pytest.mark.usefixtures("float64")
REFUSED = (
    "mixes the samples|compares the samples|depend on the whole batch|"
    "no longer separate|mixes the images"
)
MODES = ["vectorized", "per_sample", "accumulated"]
#: One of each kind, for what is asked of every mode: the types that decide
#: are the same.
SPREAD = [
    "mean",
    "branch_that_mixes",
    "gradient_norm",
    "annealed_by_a_counter",
    "by_chance",
    "equal_ids",
    "numbers_as_strings",
    "loss_over_variance_of_targets",
    "contrastive_of_distinct_labels",
    "added_loss",
    "weight_gradient_of_means",
    "sum_balanced_classes",
    "two_towers",
]
#: Of these the gradients are compared, signs as well; of others the norms.
WHOLE = [name for name in SOUND if name.startswith(("weight_", "sum_"))]


def _norms(made, **how):
    return kpg.per_sample_norms(*made(), **how)


def _expected(model, x, y):
    """The norms, from single samples; the state is put back each time."""
    kept = [np.array(v) for v in model.non_trainable_variables]
    added = any(type(one).__name__ == "AddLoss" for one in model.layers)
    others, squares = tf.stop_gradient(model(x, training=True)), []
    for i in range(len(y)):
        for variable, value in zip(model.non_trainable_variables, kept):
            variable.assign(value)
        with tf.GradientTape() as tape:
            single = model(x[i : i + 1], training=True)
            y_pred = tf.concat([others[:i], single, others[i + 1 :]], 0)
            loss = model._compile_loss(y, y_pred)
            loss += sum(model.losses) / len(y) if added else 0
        found = tape.gradient(loss, model.trainable_variables)
        squares.append(
            sum(float(tf.reduce_sum(g**2)) for g in map(_dense, found))
        )
    return len(y) * np.sqrt(squares)


def _dense(gradient):
    return 0.0 if gradient is None else tf.convert_to_tensor(gradient)


@pytest.mark.parametrize("name", MIXING)
def test_mixing_is_refused(name):
    with pytest.raises(ValueError, match=REFUSED):
        _norms(MIXING[name])


@pytest.mark.parametrize("name", [n for n in SOUND if n not in WHOLE])
def test_norms_of_what_is_sound_are_exact(name):
    model, x, y = SOUND[name]()
    found = kpg.per_sample_norms(model, x, y)
    expected = _expected(model, x, y)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", WHOLE)
def test_gradients_of_what_is_sound_are_exact(name):
    model, x, y = SOUND[name]()
    oracle.check(kpg.per_sample_gradients(model, x, y), model, x, y=y)


@pytest.mark.parametrize(
    "gradient",
    [
        lambda x, dy: tf.reduce_sum(tf.sign(dy) * x, 0),
        lambda x, dy: tf.reduce_sum(x * x, 0),
        lambda x, dy: tf.reduce_sum(dy * x, 0) + 0.1,
    ],
    ids=["sign", "without", "added"],
)
def test_own_gradients_of_weights_that_are_not_linear_are_refused(gradient):
    with pytest.raises(ValueError, match="not linear"):
        fit(stacked(product(gradient)()))


@pytest.mark.parametrize("name", SPREAD)
def test_mixing_is_refused_by_whatever_asks(name):
    mixing = MIXING[name]
    asking = {mode: lambda mode=mode: fit(mixing(), mode) for mode in MODES}
    asking["norms one by one"] = lambda: _norms(mixing, method="per_sample")
    for method in ("vectorized", "per_sample"):
        asking[f"{method} private training"] = lambda method=method: (
            fit_privately(mixing(), method)
        )
    said = {who: refusal(ask) for who, ask in asking.items()}
    assert [who for who in said if not re.search(REFUSED, said[who])] == []


@pytest.mark.parametrize("name", SPREAD[::2])
@pytest.mark.parametrize("mode", few(MODES, ["vectorized"]))
def test_sound_twins_are_served_by_every_mode(name, mode):
    fit(SOUND[name](), mode)


@pytest.mark.parametrize("name", ["equal_ids", "behind_words"])
def test_mixing_is_refused_where_the_data_are_a_dataset(name):
    with pytest.raises(ValueError, match=REFUSED):
        fit(MIXING[name](), as_dataset=True)
