import inspect

import keras
import pytest
import tensorflow as tf

from tests.uses.rules.exact import assert_exact, normal, randomized, stack

layers = keras.layers

# equation, input shape, output shape, bias axes
EQUATIONS = {
    "dense": ("ab,bc->ac", (3,), 5, "c"),
    "no bias": ("abc,cd->abd", (2, 3), (None, 4), None),
    "projection": ("abc,cde->abde", (3, 4), (None, 2, 5), "de"),
    "projection back": ("abcd,cde->abe", (3, 2, 4), (None, 5), "e"),
    "grouped": ("bqm,muh->bquh", (3, 4), (None, 2, 3), "uh"),
    "grouped back": ("bquh,uhm->bqm", (3, 2, 4), (None, 5), "m"),
    "kernel turned": ("abc,dc->abd", (3, 4), (None, 5), "d"),
    "mixed order": ("abcd,ecd->aeb", (3, 2, 4), (5, 3), "e"),
    "dots left": ("...x,xy->...y", (3, 4), 5, "y"),
    "dots left deep": ("...xy,yxz->...z", (2, 3, 4), 5, "z"),
    "dots right": ("ab...,bc->ac...", (3, 4, 2), (5,), "c"),
    "blocks": ("abc,bcd->abd", (3, 4), (3, 5), "bd"),
    "blocks with positions": ("atbc,bcd->atbd", (2, 3, 4), (2, 3, 5), "d"),
    "alone": ("abcd,de->abe", (3, 2, 4), (3, 5), "e"),
    "no input": ("ab,c->abc", (3,), (3, 4), "c"),
    "no output": ("abc,c->ab", (3, 4), (3,), None),
    "narrow bias": ("abc,cde->abde", (3, 4), (None, 2, 5), "d"),
}


def _layer(name, **kwargs):
    equation, _, output_shape, bias_axes = EQUATIONS[name]
    return layers.EinsumDense(
        equation, output_shape, bias_axes=bias_axes, **kwargs
    )


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", EQUATIONS)
def test_is_exact(name):
    shape = EQUATIONS[name][1]
    model = stack(shape, _layer(name, activation="tanh"))
    for run, n in (("graph", 3), ("known size", 1)):
        assert_exact(model, normal(n, *shape), run=run)


@pytest.mark.parametrize("name", ["projection", "mixed order", "blocks"])
def test_is_exact_under_xla(name):
    shape = EQUATIONS[name][1]
    assert_exact(stack(shape, _layer(name)), normal(2, *shape), run="xla")


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    "name", ["projection", "projection back", "kernel turned", "dots left"]
)
def test_lora_is_exact(name):
    shape = EQUATIONS[name][1]
    layer = _layer(name, lora_rank=2)
    model = stack(shape, layers.Dense(shape[-1]), layer)
    assert len(layer.trainable_variables) == 3
    assert_exact(model, normal(3, *shape))


@pytest.mark.usefixtures("float64")
def test_dense_with_lora_is_exact():
    layer = layers.Dense(5, lora_rank=2)
    model = stack((3, 4), layer, layers.Dense(2, lora_rank=1))
    assert len(layer.trainable_variables) == 3
    assert_exact(model, normal(3, 3, 4))
    layer._kernel.trainable = True
    assert_exact(model, normal(3, 3, 4))


@pytest.mark.usefixtures("float64")
def test_embedding_with_lora_is_exact():
    layer = layers.Embedding(7, 4, lora_rank=2)
    model = stack((5,), layer, layers.Dense(2), dtype="int32")
    ids = tf.constant([[1, 1, 2, 0, 6], [3, 3, 3, 3, 3], [0, 5, 0, 5, 1]])
    assert_exact(model, ids)


ALPHA = {
    "dense": (lambda: layers.Dense(5), (3, 4)),
    "einsum": (lambda: _layer("projection"), (3, 4)),
    "embedding": (lambda: layers.Embedding(7, 4), (5,)),
    "convolution": (lambda: layers.Conv1D(3, 2), (4, 2)),
}


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", ALPHA)
def test_lora_with_a_scale_of_its_own_is_exact(name):
    make, shape = ALPHA[name]
    layer = make()
    ids = name == "embedding"
    model = stack(shape, layer, dtype="int32" if ids else None)
    if "lora_alpha" not in inspect.signature(layer.enable_lora).parameters:
        pytest.skip("this Keras has no lora_alpha")
    layer.enable_lora(2, lora_alpha=8)
    x = tf.constant([[1, 1, 2, 0, 6], [3, 3, 0, 3, 3]])
    assert_exact(randomized(model), x if ids else normal(2, *shape))


ATTENTION = {
    "multi head": lambda: layers.MultiHeadAttention(2, 3, 5),
    "no bias": lambda: layers.MultiHeadAttention(2, 3, use_bias=False),
    "output shape": lambda: layers.MultiHeadAttention(2, 3, output_shape=7),
    "grouped query": lambda: layers.GroupQueryAttention(3, 4, 2),
}


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", ATTENTION)
def test_attention_is_exact(name):
    query, value = keras.Input((3, 4)), keras.Input((5, 4))
    outputs = ATTENTION[name]()(query, value, use_causal_mask=True)
    model = randomized(keras.Model([query, value], outputs))
    for run, n in (("graph", 3), ("known size", 1)):
        x = [normal(n, 3, 4), normal(n, 5, 4)]
        assert_exact(model, x, run=run)


@pytest.mark.usefixtures("float64")
def test_self_attention_with_a_mask_is_exact():
    ids = keras.Input((5,), dtype="int32")
    x = layers.Embedding(7, 4, mask_zero=True)(ids)
    x = layers.MultiHeadAttention(2, 3)(x, x)
    model = randomized(keras.Model(ids, layers.GlobalAveragePooling1D()(x)))
    batch = tf.constant([[1, 1, 2, 0, 0], [3, 4, 3, 3, 3], [6, 5, 0, 0, 0]])
    assert_exact(model, batch)


def test_attention_is_exact_under_xla():
    query = keras.Input((3, 4))
    outputs = ATTENTION["multi head"]()(query, query)
    model = randomized(keras.Model(query, outputs))
    assert_exact(model, normal(2, 3, 4), run="xla")


@pytest.mark.usefixtures("float64")
def test_a_projection_used_twice_is_exact():
    layer = layers.EinsumDense("abc,cd->abd", (None, 4), bias_axes="d")
    model = stack((3, 4), layer, layers.Activation("tanh"), layer)
    assert_exact(model, normal(3, 3, 4))
