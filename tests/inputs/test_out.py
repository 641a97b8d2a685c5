"""Where input_gradients writes, and what stops it."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests.inputs.tapes import gradients
from tests.models.making import net
from tests.uses.rules.exact import normal, stack

layers = keras.layers


def _model():
    return stack((4,), layers.Dense(3))


def _zeros(*shape):
    return np.zeros(shape, "float32")


def test_from_a_mapped_file_to_a_mapped_file(tmp_path):
    model = stack((4,), layers.Dense(3, activation="tanh"))
    x = normal(10, 4).astype("float32")
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    out = np.lib.format.open_memmap(
        tmp_path / "out.npy", "w+", "float32", (10, 3, 4)
    )
    assert gradients(model, mapped, batch_size=3, out=out) is out
    expected = gradients(model, x)
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), expected)


class _Stops:
    """An array that can be read up to a row."""

    shape, dtype = (10, 4), np.dtype("float32")

    def __init__(self, error):
        self.error = error

    def __len__(self):
        return 10

    def __getitem__(self, rows):
        if rows.start >= 6:
            raise self.error
        return np.ones((rows.stop - rows.start, 4), "float32")


@pytest.mark.parametrize("error", [OSError("gone"), KeyboardInterrupt()])
def test_what_was_written_stays(error):
    model, out = _model(), np.full((10, 3, 4), 7, "float32")
    with pytest.raises(type(error)) as caught:
        gradients(model, _Stops(error), batch_size=3, out=out)
    assert caught.value.__notes__ == [
        "input_gradients: the first 6 rows of `out` are written."
    ]
    expected = gradients(model, np.ones((6, 4), "float32"))
    np.testing.assert_array_equal(out[:6], expected)
    assert (out[6:] == 7).all()


def test_a_dataset_and_out_of_other_lengths():
    model, x = _model(), normal(7, 4)
    dataset = tf.data.Dataset.from_tensor_slices(x).batch(2)
    out = _zeros(7, 3, 4)
    gradients(model, dataset, batch_size=3, out=out)
    np.testing.assert_array_equal(out, gradients(model, x, batch_size=3))
    with pytest.raises(ValueError, match="10 rows, but x has only 7"):
        gradients(model, dataset, out=_zeros(10, 3, 4))
    with pytest.raises(ValueError, match="5 rows, but x has more"):
        gradients(model, dataset, batch_size=3, out=out[:5])


def _read_only():
    out = _zeros(10, 3, 4)
    out.flags.writeable = False
    return out


#: Arguments beside ten samples, and what the message says.
ARGUMENTS = (
    ({"outputs": 3}, "from 0 to 2.*Received: 3"),
    ({"outputs": [0, -1]}, "from 0 to 2.*Received: -1"),
    ({"outputs": []}, "at least one"),
    ({"outputs": 1.5}, "Received: 1.5 of type float"),
    ({"outputs": "all"}, "Received: 'all'"),
    ({"outputs": True}, "Received: True"),
    ({"outputs": np.zeros(9, int)}, "each of the 10 samples. Received: 9"),
    ({"outputs": np.zeros(10)}, "integer index a sample.*float64"),
    ({"outputs": np.full(10, 4)}, "from 0 to 2.*Received: 4"),
    ({"batch_size": 0}, "batch_size=0"),
    ({"batch_size": 2.5}, "batch_size=2.5"),
    ({"batch_size": np.True_}, "batch_size="),
    ({"reduce": "max"}, "reduce='max'"),
    ({"reduce": "mean", "out": np.zeros(3)}, "leaves none"),
    ({"out": _zeros(10, 4)}, r"shape \(10, 3, 4\) and dtype float32"),
    ({"out": _zeros(9, 3, 4)}, r"Received: shape \(9, 3, 4\)"),
    ({"out": np.zeros((10, 3, 4))}, "Received: .* dtype float64"),
    ({"out": [[0.0]]}, "structure of x"),
    ({"out": "file.npy"}, "NumPy array"),
    ({"out": _read_only()}, "read-only"),
)
SLICES = tf.data.Dataset.from_tensor_slices(np.zeros((8, 4)))
SINGLE = r"single samples.*x\.batch\(256"
#: Inputs that cannot be read.
INPUTS = (
    (np.zeros((0, 4)), {}, "at least one sample"),
    ([np.zeros((3, 4)), np.zeros((2, 4))], {}, "first axis"),
    ([[1.0, 2.0, 3.0, 4.0]], {}, "numpy.asarray"),
    (None, {}, "Received: None"),
    (np.float32(3), {}, "sample"),
    (np.zeros(4), {}, SINGLE),
    (SLICES, {}, SINGLE),
    (SLICES.batch(2).repeat(), {}, "without an end"),
    (SLICES.batch(2).take(0), {}, "at least one sample"),
    (tf.data.Dataset.range(5), {}, "dataset of batches"),
    (SLICES.batch(2), {"outputs": np.zeros(9, int)}, "only 8 samples"),
)


@pytest.mark.quick
def test_arguments_and_inputs_that_do_not_fit_are_refused():
    model, x = _model(), normal(10, 4)
    calls = [(x, how, message) for how, message in ARGUMENTS]
    for given, how, message in (*calls, *INPUTS):
        with pytest.raises((TypeError, ValueError), match=message):
            gradients(model, given, **how)
    assert gradients(model, SLICES.batch(3)).shape == (8, 3, 4)
    column = net(shape=(1,), units=2)
    assert len(gradients(column, np.zeros(5))) == 5


def test_models_that_have_no_such_gradient():
    with pytest.raises(TypeError, match=r"a keras\.Model"):
        kpg.input_gradients(lambda x: x, normal(3, 4))
    over = net(layers.UnitNormalization(axis=0), shape=(4,), units=None)
    with pytest.raises(ValueError, match="mixes the samples of a batch"):
        gradients(over, normal(3, 4))
