"""Real models: exact, and served by their ops."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.influence.projected_factors import project
from keras_pergrad.influence.projection import projections
from keras_pergrad.uses import TracedStep
from tests import oracle, real_models
from tests.marks import few
from tests.real_models import HUB, MODELS, NEED_KERAS_HUB, loss

#: Trained variables that a classifier does not use, as published.
UNUSED = {
    "llama": "reverse_embeddings",
    "mistral": "reverse_embeddings",
    "phi3": "reverse_embeddings",
    "xlnet": "mask_emb",
    "dinov2": "mask_token",
}
RATE = 1e-3
#: One of each kind.
QUICK = ("llama", "bert", "gpt2_causal", "gemma_lora", "resnet50_frozen_norms")


every_model = pytest.mark.parametrize(
    "name", few(MODELS, QUICK, [*MODELS][::2])
)
#: For what takes more than ten seconds.
one_of_each_kind = pytest.mark.parametrize("name", few(MODELS, (), QUICK))


def _made(name):
    """The tiny model of this name, and a batch."""
    if name in NEED_KERAS_HUB:
        hub = pytest.importorskip("keras_hub")
        cls = HUB.get(name, ("",))[0] + "Backbone"
        if not hasattr(hub.models, cls):
            pytest.skip(f"keras-hub {hub.__version__} has no {cls}")
    return MODELS[name]("tiny")


@every_model
def test_gradients_are_those_of_single_samples(name):
    model, x, y = _made(name)
    model.compile("sgd", loss())
    served = {row.served_by for row in kpg.explain(model, 3, x=x)}
    assert served <= {"ops", "unused"}
    expected = oracle.per_sample_gradients(
        model,
        tf.nest.map_structure(tf.convert_to_tensor, x),
        tf.convert_to_tensor(y),
        # keras-hub's XLNet makes positions by the number of samples.
        alone=name != "xlnet",
    )
    _assert_all_but_the_unused_matter(name, model, expected)
    squares = sum(
        np.square(g).reshape(len(g), -1).sum(1)
        for g in expected
        if g is not None
    )
    norms = kpg.per_sample_norms(model, x, y)
    rounding = 1e-6 * np.sqrt(squares.max())
    np.testing.assert_allclose(norms, np.sqrt(squares), 2e-5, rounding)
    oracle.assert_agree(kpg.per_sample_gradients(model, x, y), expected)


def _assert_all_but_the_unused_matter(name, model, gradients):
    """Else a model would show little."""
    pairs = list(zip(model.trainable_variables, gradients, strict=True))
    missing = [v.path.rsplit("/", 1)[1] for v, g in pairs if g is None]
    assert missing == ([UNUSED[name]] if name in UNUSED else [])
    assert all(
        np.abs(np.mean(g, 0)).max() > 0
        for v, g in pairs
        # A bias of keys adds the same to all of a query's scores.
        if g is not None and not v.path.endswith(("key/bias", "key_dense/bias"))
    )


@pytest.mark.filterwarnings("ignore:Gradients do not exist")  # UNUSED
@one_of_each_kind
def test_questions_about_samples_are_answered(name):
    """Projections, the Fisher information and values of samples."""
    model, x, y = _made(name)
    model.compile(keras.optimizers.SGD(RATE), loss())
    positions = y[0].size
    expected = kpg.per_sample_gradients(model, x, y)
    squares = [
        None if g is None else np.mean(np.square(positions * g), 0)
        for g in expected
    ]
    largest = max(s.max() for s in squares if s is not None)
    found = kpg.influence.fisher(model, x, y, labels="data", verbose=0)
    for part, square in zip(found.parts, squares, strict=True):
        assert (part is None) == (square is None)
        if square is None:
            continue
        np.testing.assert_allclose(part, square, 1e-4, 1e-6 * largest)
    kfac = kpg.influence.fisher(model, x, kind="kfac", verbose=0)
    assert [p is None for p in kfac.parts] == [p is None for p in found.parts]

    for projected, gradients in _projected(model, x, y):
        rounding = 1e-5 * max(np.abs(gradients).max(), 1e-6)
        np.testing.assert_allclose(projected, gradients, 1e-4, rounding)

    with tf.GradientTape() as tape:
        value = loss()(y, model(x, training=False))
    slope = tape.gradient(value, model.trainable_variables)
    dots = sum(
        np.reshape(g, (len(y), -1)) @ np.ravel(tf.convert_to_tensor(s))
        for g, s in zip(expected, slope)
        if g is not None
    )
    valued = kpg.PerGradModel.from_model(model)
    optimizer = keras.optimizers.SGD(RATE)
    valued.compile(optimizer, loss(), gradient_mode="vectorized")
    values = kpg.callbacks.SampleValues((x, y))
    valued.fit(x, y, verbose=0, shuffle=False, callbacks=[values])
    dots *= RATE / len(y)
    rounding = 1e-5 * np.abs(dots).max()
    np.testing.assert_allclose(values.values, dots, 1e-4, rounding)


def _projected(model, x, y):
    """Projections by factors, and those of gradients written out."""
    shapes = [v.shape for v in model.trainable_variables]
    maps = projections(shapes, 20 * len(shapes), seed=0)

    @tf.function(autograph=False)
    def both(x, y):
        step = TracedStep(model, (x, y, None))
        with step:
            value = model.compute_loss(x, y, step.forward(x))
        return [
            (project(f, p), p.of_gradients(f.materialize()))
            for f, p in zip(step.sample_gradients(value), maps)
            if f is not None
        ]

    x = tf.nest.map_structure(tf.convert_to_tensor, x)
    return both(x, tf.convert_to_tensor(y))


def test_mixed_padding_is_found():
    pytest.importorskip("keras_hub")
    model, x, y = real_models.padded_xlnet()
    model.compile("sgd", loss())
    with pytest.raises(ValueError, match=r"AttentionMaskLayer.* mixes"):
        kpg.per_sample_norms(model, x, y)


def test_builders_give_the_same_twice():
    keras.utils.set_random_seed(1)
    first, x, y = MODELS["convnext"]("tiny")
    keras.utils.set_random_seed(1)
    second, again, labels = MODELS["convnext"]("tiny")
    for a, b in zip(
        [*first.get_weights(), x, y], [*second.get_weights(), again, labels]
    ):
        np.testing.assert_array_equal(a, b)
