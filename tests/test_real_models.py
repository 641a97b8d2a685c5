"""The table of real models: what its builders give fits together."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.real_models import HUB, MODELS, NEED_KERAS_HUB, loss

#: Trained variables that a classifier does not use, as published.
UNUSED = {
    "llama": "reverse_embeddings",
    "mistral": "reverse_embeddings",
    "phi3": "reverse_embeddings",
    "xlnet": "mask_emb",
    "dinov2": "mask_token",
}
#: One of each kind; the others are slow tests.
QUICK = ("llama", "bert", "gpt2_causal", "gemma_lora", "resnet50_frozen_norms")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow)
        for name in MODELS
    ],
)
def test_every_weight_but_the_unused_has_a_gradient(name):
    if name in NEED_KERAS_HUB:
        hub = pytest.importorskip("keras_hub")
        cls = HUB.get(name, ("Backbone",))[0]
        if not hasattr(hub.models, cls):
            pytest.skip(f"keras-hub {hub.__version__} has no {cls}")
    model, x, y = MODELS[name]("tiny")
    flat = tf.nest.flatten(x)
    assert {len(a) for a in flat} == {len(y)} == {3}
    with tf.GradientTape() as tape:
        logits = model(x, training=True)
        value = loss()(y, logits)
    assert logits.shape[:-1] == y.shape
    assert np.isfinite(value)
    gradients = tape.gradient(value, model.trainable_variables)
    missing = [
        v.path
        for v, g in zip(model.trainable_variables, gradients)
        if g is None
    ]
    assert [p.rsplit("/", 1)[1] for p in missing] == [
        UNUSED[name] for _ in missing
    ]
    assert len(missing) == (name in UNUSED)
    assert all(
        np.abs(tf.convert_to_tensor(g)).max() > 0
        for v, g in zip(model.trainable_variables, gradients)
        # A bias of keys adds the same to all of a query's scores.
        if g is not None and not v.path.endswith(("key/bias", "key_dense/bias"))
    )


def test_builders_give_the_same_twice():
    keras.utils.set_random_seed(1)
    first, x, y = MODELS["convnext"]("tiny")
    keras.utils.set_random_seed(1)
    second, again, labels = MODELS["convnext"]("tiny")
    for a, b in zip(
        [*first.get_weights(), x, y], [*second.get_weights(), again, labels]
    ):
        np.testing.assert_array_equal(a, b)
