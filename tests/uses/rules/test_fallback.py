"""Calls that rules do not cover, and models called in unusual ways."""

import keras
import numpy as np
import pytest

import keras_pergrad as kpg
from tests import oracle
from tests.models.making import compiled, net
from tests.uses.rules.exact import (
    assert_draws_of_the_batch,
    assert_exact,
    normal,
    randomized,
    stack,
)

layers = keras.layers


class Dropping(layers.Layer):
    """No rule, no `training` argument; Dropout inside."""

    def __init__(self):
        super().__init__()
        self.dropout = layers.Dropout(0.5, seed=1)

    def build(self, shape):
        self.scale = self.add_weight((shape[-1],), "ones")

    def call(self, x):
        return self.dropout(x * self.scale)


class Block(layers.Layer):
    """Takes `training`, which the layer inside can only get from here."""

    def __init__(self):
        super().__init__()
        self.inner = Dropping()

    def build(self, shape):
        self.inner.build(shape)

    def call(self, x, training=None):
        return self.inner(x)


class Silent(keras.Model):
    """Has no `training` argument, so Keras never trains its Dropout."""

    inner = Block

    def __init__(self):
        super().__init__()
        self.block = self.inner()
        self.dense = layers.Dense(2)

    def call(self, x):
        return self.dense(self.block(x))


class Fixed(Silent):
    """Calls a layer for inference while it trains."""

    def call(self, x, training=None):
        return self.dense(self.block(x, training=False))


class Active(Silent):
    """Trains what is inside."""

    def call(self, x, training=None):
        return self.dense(self.block(x))


class Noisy(layers.Layer):
    """Dropout and noise inside, between uses of its weight."""

    def __init__(self):
        super().__init__()
        self.dropout = layers.Dropout(0.5, seed=1)
        self.noise = layers.GaussianNoise(0.3, seed=2)

    def build(self, shape):
        self.scale = self.add_weight((shape[-1],), "ones")

    def call(self, x, training=None):
        x = self.dropout(x * self.scale, training=training)
        return self.noise(keras.ops.tanh(x), training=training) * self.scale


class Drawing(Active):
    """Draws twice inside."""

    inner = Noisy


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("make", [Silent, Fixed, Active, Drawing])
@pytest.mark.parametrize("method", ["vectorized", "per_sample"])
def test_layers_inside_see_the_training_flag_of_the_batch(make, method):
    model = make()
    x, y = normal(4, 3), normal(4, 2)
    model(x)
    if method == "per_sample" and issubclass(make, Active):
        # Draws of its own for each sample.
        model.compile("sgd", "mse")
        calm, found = (
            kpg.per_sample_gradients(
                model, x, y, method=method, training=training
            )
            for training in (False, True)
        )
        assert not np.allclose(calm[0], found[0])
        return
    found = assert_draws_of_the_batch(model, x, y, method=method)
    if not issubclass(make, Active):
        oracle.check(found, model, x, y=y)


def test_outputs_of_another_rank_for_one_sample():
    class Squeezed(layers.Layer):
        def call(self, x):
            return x[0] if x.shape[0] == 1 else x

        def compute_output_shape(self, shape):
            return shape

    parts = layers.Dense(3), Squeezed()
    model = compiled(net(*parts, shape=(3,), units=None), "per_sample")
    x = normal(4, 3)
    with pytest.raises(ValueError, match="another number of axes"):
        model.fit(x, x, verbose=0)


class Pair(layers.Layer):
    """Returns None beside its tensor, as layers with optional parts do."""

    def build(self, shape):
        self.scale = self.add_weight((shape[-1],), "ones")

    def call(self, x):
        return {"x": x * self.scale, "state": None, "name": "pair"}


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("run", ["known size", "graph"])
def test_outputs_that_are_no_tensors(run):
    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.pair = Pair()
            self.dense = layers.Dense(2)

        def call(self, x):
            return self.dense(self.pair(x)["x"])

    model = Net()
    x = normal(3, 4)
    model(x)
    assert_exact(randomized(model), x, run=run)
    found, looped = (
        kpg.per_sample_gradients(model, x, normal(3, 2), method=method)
        for method in ("vectorized", "per_sample")
    )
    oracle.assert_agree(found, looped)


def _twice(cls, name="kernel"):
    """A subclass whose layers use a weight doubled."""
    doubled = property(lambda self: 2 * getattr(self, f"_{name}"))
    return type("Twice", (cls,), {name: doubled})


class Standardized(layers.Conv2D):
    """Changes the kernel in the method that Keras has for it."""

    def convolution_op(self, inputs, kernel):
        kernel -= keras.ops.mean(kernel, axis=(0, 1, 2), keepdims=True)
        return super().convolution_op(inputs, kernel)


IDS = np.array([[1, 1, 4], [0, 2, 3]], "int32")
#: Layers that change their weights or have more, and the shape of a sample.
OWN = {
    "dense": (lambda: _twice(layers.Dense)(3), (4,)),
    "einsum": (lambda: _twice(layers.EinsumDense)("ab,bc->ac", (3,)), (4,)),
    "embedding": (lambda: _twice(layers.Embedding, "embeddings")(5, 2), None),
    "convolution": (lambda: _twice(layers.Conv2D)(3, 2), (5, 4, 2)),
    "its method": (lambda: Standardized(3, 2), (5, 4, 2)),
    "its name alone": (
        lambda: type("Named", (layers.Conv2D,), {})(3, 2),
        (5, 4, 2),
    ),
    "activation with weights": (
        lambda: layers.SeparableConv1D(3, 2, activation=layers.PReLU()),
        (4, 2),
    ),
}


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", OWN)
def test_a_layer_with_weights_of_its_own_is_exact(name):
    make, shape = OWN[name]
    if shape is None:
        assert_exact(stack((3,), make(), dtype="int32"), IDS)
    else:
        assert_exact(stack(shape, make()), normal(3, *shape))


@pytest.mark.usefixtures("float64")
def test_arguments_by_name_in_any_order():
    dense, table = layers.Dense(3), layers.Embedding(4, 3)
    norm, named = layers.LayerNormalization(), "inputs"
    if hasattr(layers, "RMSNormalization"):
        norm, named = layers.RMSNormalization(), "x"

    def call(x):
        shift = table(inputs=keras.ops.cast(x[:, 0] > 0, "int32"))
        return norm(**{named: dense(training=None, inputs=x) + shift})

    assert_exact(stack((4,), call), normal(3, 4))
