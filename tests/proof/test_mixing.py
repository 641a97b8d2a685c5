"""What mixes samples is refused, whatever the values; sound twins are exact."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests import oracle
from tests.marks import few
from tests.proof import chosen_cases, index_cases  # noqa: F401
from tests.proof.mixing_cases import CASES, X, Y, stacked
from tests.proof.private_fits import fit_privately

pytestmark = pytest.mark.usefixtures("float64")
REFUSED = (
    "mixes the samples|compares the samples|depend on the whole batch|"
    "no longer apart|mixes the images"
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
]


def _mode(name):
    if name == "accumulated":
        return kpg.Accumulated(microbatch_size=2)
    return name


def _fit(made, mode="vectorized", as_dataset=False):
    model, x, y = made()
    loss = model.loss
    model = kpg.PerGradModel.from_model(model)
    model.compile("sgd", loss, gradient_mode=_mode(mode))
    data = x, y
    if as_dataset:
        data = [tf.data.Dataset.from_tensor_slices(data).batch(len(y))]
    model.fit(*data, shuffle=False, verbose=0)


def _fit_privately(made, method="vectorized"):
    model, x, y = made()
    fit_privately(kpg.PerGradModel.from_model(model), x, y, model.loss, method)


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


def test_there_are_many_kinds():
    assert len(CASES) >= 60


@pytest.mark.parametrize("name", CASES)
def test_mixing_is_refused(name):
    with pytest.raises(ValueError, match=REFUSED):
        _norms(CASES[name][0])


@pytest.mark.parametrize("name", CASES)
def test_its_sound_twin_is_exact(name):
    model, x, y = CASES[name][1]()
    found = kpg.per_sample_norms(model, x, y)
    expected = _expected(model, x, y)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", SPREAD)
def test_mixing_is_refused_by_whatever_asks(name):
    mixing = CASES[name][0]
    asking = {mode: lambda mode=mode: _fit(mixing, mode) for mode in MODES}
    asking["norms one by one"] = lambda: _norms(mixing, method="per_sample")
    for method in ("vectorized", "per_sample"):
        asking[f"{method} private training"] = lambda method=method: (
            _fit_privately(mixing, method)
        )
    said = {who: _refusal(ask) for who, ask in asking.items()}
    assert [who for who in said if not re.search(REFUSED, said[who])] == []


def _refusal(ask):
    """Return what a refusal says, "" if there is none."""
    try:
        ask()
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", SPREAD[::2])
@pytest.mark.parametrize("mode", few(MODES, ["vectorized"]))
def test_sound_twins_are_served_by_every_mode(name, mode):
    _fit(CASES[name][1], mode)


@pytest.mark.parametrize("name", ["equal_ids", "behind_words"])
def test_mixing_is_refused_where_the_data_are_a_dataset(name):
    with pytest.raises(ValueError, match=REFUSED):
        _fit(CASES[name][0], as_dataset=True)


# What follows the number of samples, or a sample's place among them.
def _over_number(y, p):
    squares = keras.ops.mean(keras.ops.square(y - p), -1)
    return squares / keras.ops.cast(keras.ops.shape(p)[0], "float64")


class _Sized(keras.layers.Layer):
    def __init__(self, by_place):
        super().__init__()
        self.by_place = by_place

    def call(self, x):
        n = keras.ops.shape(x)[0]
        if self.by_place:
            places = keras.ops.cast(keras.ops.arange(n), x.dtype)
            return x * places[:, None]
        return x / keras.ops.cast(n, x.dtype)

    def compute_output_shape(self, shape):
        return shape


def _by_size(name):
    if name == "loss":
        model, x, y = stacked(keras.layers.Identity())
        model.compile("sgd", _over_number)
        return model, x, y
    return stacked(_Sized(name == "place"))


SIZED = ["loss", "layer", "place"]


@pytest.mark.parametrize(
    ("mode", "name"),
    [
        ("per_sample", "layer"),
        ("per_sample", "place"),
        ("accumulated", "loss"),
        ("accumulated", "layer"),
        ("accumulated", "place"),
    ],
)
def test_what_follows_the_number_is_refused_where_passes_repeat(mode, name):
    with pytest.raises(ValueError, match="number of samples"):
        _fit(lambda: _by_size(name), mode)


@pytest.mark.parametrize("name", SIZED)
def test_what_follows_the_number_is_refused_by_private_training(name):
    for method in ("vectorized", "per_sample"):
        with pytest.raises(ValueError, match=r"number of samples|how many"):
            _fit_privately(lambda: _by_size(name), method)


@pytest.mark.parametrize("name", SIZED)
def test_what_follows_the_number_is_exact_in_one_pass(name):
    model, _, _ = _by_size(name)
    found = kpg.per_sample_gradients(model, X, Y)
    expected = oracle.per_sample_gradients(model, X, Y, None, True, alone=False)
    oracle.assert_agree(found, expected)


def test_a_loss_over_the_number_is_exact_one_by_one():
    model, _, _ = _by_size("loss")
    found = kpg.per_sample_gradients(model, X, Y, method="per_sample")
    oracle.check(found, model, X, Y, training=True)
