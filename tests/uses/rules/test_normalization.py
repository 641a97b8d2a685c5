import functools

import keras
import pytest

import keras_pergrad as kpg
from tests.marks import few
from tests.uses.rules.exact import assert_exact, normal, randomized, stack

layers = keras.layers

SCALED = {"rms_scaling": True}
LAYERS = {
    "layer": ((5, 4), layers.LayerNormalization),
    "layer axes": ((5, 4, 3), lambda: layers.LayerNormalization([1, 3])),
    "layer negative": ((5, 4, 3), lambda: layers.LayerNormalization([-3, -1])),
    "layer all": ((5, 4), lambda: layers.LayerNormalization([1, 2])),
    "layer scale": ((4,), lambda: layers.LayerNormalization(center=False)),
    "layer center": ((4,), lambda: layers.LayerNormalization(scale=False)),
    "group": ((3, 4, 6), lambda: layers.GroupNormalization(3)),
    "group first": ((6, 3, 4), lambda: layers.GroupNormalization(2, axis=1)),
    "group middle": ((3, 6, 4), lambda: layers.GroupNormalization(2, axis=-2)),
    "instance": ((5, 4), lambda: layers.GroupNormalization(-1)),
    "group scale": ((6,), lambda: layers.GroupNormalization(2, center=False)),
    "group center": ((6,), lambda: layers.GroupNormalization(2, scale=False)),
    "prelu": ((5, 4), layers.PReLU),
    "prelu shared": ((3, 4, 2), lambda: layers.PReLU(shared_axes=[1, 2])),
    "prelu one": ((3, 4), lambda: layers.PReLU(shared_axes=2)),
    "unit": ((4,), layers.UnitNormalization),
    "layer scaled": ((5, 4), lambda: layers.LayerNormalization(**SCALED)),
}
QUICK = ["layer axes", "layer center", "group middle", "prelu shared", "unit"]
QUICK += ["layer scaled"]
for _axis in (-1, 1):
    for _settings in ({}, {"center": False}, {"scale": False}):
        _name = f"batch {_axis} {' '.join(_settings)}"
        # Outside training, by its moving statistics.
        _make = functools.partial(layers.BatchNormalization, _axis, **_settings)
        LAYERS[_name] = (3, 4), _make
        QUICK.append(_name)
if hasattr(layers, "RMSNormalization"):
    LAYERS["rms"] = ((5, 4), layers.RMSNormalization)
    LAYERS["rms axes"] = ((5, 4, 3), lambda: layers.RMSNormalization([2, 3]))
    LAYERS["rms first"] = ((4, 4), lambda: layers.RMSNormalization(axis=1))
    QUICK.append("rms first")


@pytest.mark.usefixtures("float64")
@pytest.mark.filterwarnings("ignore:You passed `rms_scaling=True`")
@pytest.mark.parametrize("name", few(LAYERS, QUICK))
def test_is_exact(name):
    shape, make = LAYERS[name]
    model = stack(shape, layers.Dense(shape[-1]), make(), layers.Dense(2))
    for run, n in (("graph", 3), ("known size", 1)):
        assert_exact(model, normal(n, *shape), run=run)


@pytest.mark.parametrize("name", ["layer axes", "group first", "prelu one"])
def test_is_exact_under_xla(name):
    shape, make = LAYERS[name]
    model = stack(shape, make(), layers.Dense(2))
    assert_exact(model, normal(2, *shape), run="xla")


class Inference(keras.Model):
    """Its normalisation never takes the batch's statistics."""

    def __init__(self):
        super().__init__()
        self.norm = layers.BatchNormalization()
        self.out = layers.Dense(2)

    def call(self, inputs):
        return self.out(self.norm(inputs, training=False))


@pytest.mark.usefixtures("float64")
def test_batch_normalization_called_for_inference_while_training():
    model = Inference()
    model(normal(3, 4))
    assert len(model.norm.trainable_variables) == 2
    assert_exact(randomized(model), normal(3, 4), training=True)


def test_normalising_over_the_samples_is_refused():
    inputs = keras.Input((4,), batch_size=3)
    layer = layers.LayerNormalization(axis=[0, 1], name="norm")
    model = keras.Model(inputs, layer(inputs))
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"'norm' .* mixes the samples"):
        kpg.per_sample_gradients(model, normal(3, 4), normal(3, 4))
