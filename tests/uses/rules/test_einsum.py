import inspect

import keras
import pytest
import tensorflow as tf

from tests.uses.rules.exact import IDS, assert_exact, normal, randomized, stack

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


#: Name: a layer, and the shape of a sample.
LORA = {
    "dense": (lambda: layers.Dense(5), (3, 4)),
    "projection": (lambda: _layer("projection"), (3, 4)),
    "projection back": (lambda: _layer("projection back"), (3, 2, 4)),
    "kernel turned": (lambda: _layer("kernel turned"), (3, 4)),
    "dots left": (lambda: _layer("dots left"), (3, 4)),
    "embedding": (lambda: layers.Embedding(7, 4), (4,)),
    "1d": (lambda: layers.Conv1D(3, 3, strides=2), (6, 2)),
    "2d": (lambda: layers.Conv2D(3, 3, strides=2), (6, 5, 2)),
    "2d groups": (lambda: layers.Conv2D(4, 2, groups=2), (4, 4, 4)),
}
WITH_ALPHA = ("dense", "projection", "embedding", "1d")


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("name", "alpha"),
    [(name, None) for name in LORA] + [(name, 8) for name in WITH_ALPHA],
)
def test_lora_is_exact(name, alpha):
    """Also with a scale of its own, and beside a kernel that is trained."""
    make, shape = LORA[name]
    layer, ids = make(), name == "embedding"
    before = [] if ids else [layers.Dense(shape[-1])]
    dtype = "int32" if ids else None
    model = stack(shape, *before, layer, layers.Dense(2), dtype=dtype)
    known = inspect.signature(layer.enable_lora).parameters
    if alpha and "lora_alpha" not in known:
        pytest.skip("this Keras has no lora_alpha")
    layer.enable_lora(2, **({"lora_alpha": alpha} if alpha else {}))
    randomized(model)
    assert len(layer.trainable_variables) == (2 if ids else 3)
    x = IDS if ids else normal(3, *shape)
    assert_exact(model, x)
    if name in ("dense", "1d", "2d") and not alpha:
        layer._kernel.trainable = True
        assert_exact(model, x)


@pytest.mark.usefixtures("float64")
def test_layers_made_with_lora_are_exact():
    parts = layers.Dense(5, lora_rank=2), layers.Conv1D(3, 2, lora_rank=2)
    model = stack((3, 4), *parts, layers.Dense(2, lora_rank=1))
    assert [len(part.trainable_variables) for part in parts] == [3, 3]
    assert_exact(model, normal(3, 3, 4))


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
