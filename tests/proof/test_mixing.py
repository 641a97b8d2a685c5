"""What mixes samples is refused, whatever the values; sound twins are exact."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests import oracle
from tests.marks import few
from tests.proof import chosen_cases, index_cases  # noqa: F401
from tests.proof.mixing_cases import CASES, X, Y, stacked

pytestmark = pytest.mark.usefixtures("float64")
REFUSED = (
    "mixes the samples|compares the samples|depend on the whole batch|"
    "no longer apart|mixes the images"
)
MODES = ["vectorized", "per_sample", "accumulated"]
#: For what is asked of every mode.
SPREAD = [
    "mean",
    "next_row",
    "branch_that_mixes",
    "loop_as_long_as_values_say",
    "gradient_roll",
    "gradient_norm",
    "state_read_again",
    "annealed_by_a_counter",
    "by_chance",
    "behind_a_gate_of_zeros",
    "equal_ids",
    "values_of_one_bin",
    "loss_towards_the_centre_from_zeros",
    "loss_over_variance_of_targets",
    "contrastive_of_distinct_labels",
    "weights_of_classes_by_counts",
    "metric_in_the_loss",
    "added_loss",
    "the_last_turn",
    "fades_by_others",
]


def _mode(name):
    if name == "accumulated":
        return kpg.Accumulated(microbatch_size=2)
    return name


def _fit(made, mode):
    model, x, y = made()
    loss = model.loss
    model = kpg.PerGradModel.from_model(model)
    model.compile("sgd", loss, gradient_mode=mode)
    model.fit(x, y, batch_size=len(y), shuffle=False, verbose=0)


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
    model, x, y = CASES[name][0]()
    with pytest.raises(ValueError, match=REFUSED):
        kpg.per_sample_norms(model, x, y)


@pytest.mark.parametrize("name", CASES)
def test_its_sound_twin_is_exact(name):
    model, x, y = CASES[name][1]()
    found = kpg.per_sample_norms(model, x, y)
    expected = _expected(model, x, y)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", few(SPREAD, SPREAD[::3]))
@pytest.mark.parametrize("mode", few(MODES, ["vectorized"]))
def test_mixing_is_refused_by_every_mode(name, mode):
    with pytest.raises(ValueError, match=REFUSED):
        _fit(CASES[name][0], _mode(mode))


@pytest.mark.parametrize("name", SPREAD[::3])
@pytest.mark.parametrize("mode", few(MODES, ["vectorized"]))
def test_sound_twins_are_served_by_every_mode(name, mode):
    _fit(CASES[name][1], _mode(mode))


@pytest.mark.parametrize("name", SPREAD[::3])
def test_mixing_is_refused_one_by_one(name):
    model, x, y = CASES[name][0]()
    with pytest.raises(ValueError, match=REFUSED):
        kpg.per_sample_norms(model, x, y, method="per_sample")


@pytest.mark.parametrize(
    "name",
    [
        "mean",
        "branch_that_mixes",
        "gradient_norm",
        "annealed_by_a_counter",
        "equal_ids",
        "loss_over_variance_of_targets",
        "contrastive_of_distinct_labels",
    ],
)
@pytest.mark.parametrize("method", ["vectorized", "per_sample"])
def test_mixing_is_refused_by_private_training(name, method):
    model, x, y = CASES[name][0]()
    with pytest.raises(ValueError, match=REFUSED):
        _fit_privately(model, x, y, method)


def _fit_privately(model, x, y, method="vectorized"):
    private = kpg.PrivateTraining(
        noise_multiplier=1.0,
        delta=1e-2,
        samples=len(y),
        batch_size=len(y),
        seed=1,
        user_ids="unique",
        method=method,
        epochs=1,
    )
    loss = model.loss
    model = kpg.PerGradModel.from_model(model)
    model.compile(
        keras.optimizers.SGD(0.1), loss, gradient_mode=private.gradient_mode
    )
    model.fit(
        private.batches(x, y), epochs=1, callbacks=[private.callback], verbose=0
    )


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
        _fit(lambda: _by_size(name), _mode(mode))


@pytest.mark.parametrize("name", SIZED)
def test_what_follows_the_number_is_refused_by_private_training(name):
    with pytest.raises(ValueError, match=r"number of samples|how many"):
        _fit_privately(*_by_size(name))


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
