"""Models and losses for which microbatches must equal the big batch."""

import functools

import keras
import numpy as np

import keras_pergrad as kpg
from tests.models.making import net

layers = keras.layers
N = 23
#: Of batches, three of which are one of 10 samples, and the last is alone.
SIZES = (4, 4, 2, 4, 4, 2, 3)
EXECUTION = {
    "graph": {"jit_compile": False},
    "eager": {"run_eagerly": True},
    "xla": {"jit_compile": True},
}


def dense(cls):
    hidden = layers.Dense(4, "tanh", kernel_regularizer="l2")
    return net(hidden, cls=cls)


def masked(cls):
    table = layers.Embedding(7, 4, mask_zero=True)
    hidden = layers.Dense(4, "tanh")
    return net(table, hidden, shape=(6,), dtype="int32", cls=cls)


def outputs(cls):
    """Two outputs, one of them a picture: other numbers of values."""
    inputs = keras.Input((5,))
    x = layers.Dense(6, activation="tanh")(inputs)
    picture = layers.Reshape((2, 3), name="picture")(x)
    return cls(
        inputs, {"score": layers.Dense(1, name="score")(x), "picture": picture}
    )


class Added(layers.Layer):
    """Gives `add_loss` a sum and two means."""

    def call(self, x):
        self.add_loss(0.01 * keras.ops.sum(x**2))
        self.add_loss(keras.ops.mean(keras.ops.abs(x)))
        self.add_loss(0.1 * keras.ops.mean(keras.ops.sum(x**4, -1)))
        return x


def added(cls):
    hidden = layers.Dense(4, "tanh", activity_regularizer="l2")
    return net(hidden, Added(), cls=cls)


def added_only(cls):
    return net(layers.Dense(4), Added(), units=None, cls=cls)


_rng = np.random.default_rng(5)
X = _rng.normal(size=(N, 5))
TARGETS = _rng.normal(size=(N, 3))
LABELS = _rng.integers(0, 3, size=N)
WEIGHTS = _rng.uniform(size=N)
WEIGHTS[:6] = 0  # A whole microbatch without weight.
IDS = _rng.integers(0, 7, size=(N, 6))
IDS[4:8] = 0  # A whole microbatch without an unmasked position.
PLACES = _rng.integers(0, 3, size=(N, 6))
PLACE_WEIGHTS = _rng.uniform(size=(N, 6))
TWO = {
    "score": _rng.normal(size=(N, 1)),
    "picture": _rng.normal(size=(N, 2, 3)),
}


def _mse(reduction):
    return keras.losses.MeanSquaredError(reduction=reduction)


def _labels(reduction):
    return keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction=reduction
    )


MEAN, WEIGHTED = "sum_over_batch_size", "mean_with_sample_weight"


def _own(y_true, y_pred):
    return keras.ops.sum(keras.ops.abs(y_true - y_pred), axis=-1)


FLAT = {"x": X, "y": TARGETS}
SEQUENCES = {"x": IDS, "y": PLACES}
# name: (model, arguments of compile, arguments of fit)
CASES = {
    f"{kind}{reduction}-{weights}": (
        make,
        lambda loss=loss, reduction=reduction: {"loss": loss(reduction)},
        given if weights == "plain" else {**given, "sample_weight": weighted},
    )
    for kind, make, loss, given, weighted in (
        ("", dense, _mse, FLAT, WEIGHTS),
        ("masked-", masked, _labels, SEQUENCES, PLACE_WEIGHTS),
    )
    for reduction in ("sum", MEAN, WEIGHTED)
    for weights in ("plain", "weighted")
}
CASES |= {
    "mean": (dense, lambda: {"loss": _mse("mean")}, FLAT),
    "function": (dense, lambda: {"loss": _own}, FLAT),
    "class_weight": (
        dense,
        lambda: {
            "loss": _labels(WEIGHTED),
            "metrics": ["accuracy"],
            "weighted_metrics": ["accuracy"],
        },
        {"x": X, "y": LABELS, "class_weight": {0: 1.0, 1: 0.0, 2: 3.0}},
    ),
    "outputs-means": (
        outputs,
        lambda: {
            "loss": {"score": "mse", "picture": "mae"},
            "loss_weights": {"score": 0.3, "picture": 2.0},
            "metrics": {"score": ["mae"], "picture": ["mse"]},
        },
        {"x": X, "y": TWO},
    ),
    "outputs-mixed": (
        outputs,
        lambda: {
            "loss": {"score": _mse("sum"), "picture": _mse(WEIGHTED)},
            "loss_weights": {"score": 0.3, "picture": 2.0},
        },
        {
            "x": X,
            "y": TWO,
            "sample_weight": {
                "score": WEIGHTS,
                "picture": _rng.uniform(size=(N, 2)),
            },
        },
    ),
    "added": (added, lambda: {"loss": _mse(MEAN)}, FLAT),
    "added-weighted": (
        added,
        lambda: {"loss": _mse(WEIGHTED)},
        {**FLAT, "sample_weight": WEIGHTS},
    ),
    "added-only": (added_only, lambda: {"loss": None}, {"x": X}),
}


class Batches(keras.utils.PyDataset):
    """Batches of given sizes, in order, again and again."""

    def __init__(self, data, sizes):
        super().__init__()
        self.data, self.sizes = data, list(sizes)
        self.starts = [sum(self.sizes[:k]) for k in range(len(self.sizes))]

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, k):
        rows = slice(self.starts[k], self.starts[k] + self.sizes[k])
        return keras.tree.map_structure(lambda a: a[rows], self.data)


def batches(name, sizes):
    """The data of a case in batches of these sizes."""
    arguments = CASES[name][2]
    parts = [arguments.get(k) for k in ("x", "y", "sample_weight")]
    while parts[-1] is None:
        parts.pop()
    return Batches(tuple(parts), sizes)


def compiled(name, cls, optimizer=None, **arguments):
    """The model of a case, from the same start each time."""
    make, compile_arguments, _ = CASES[name]
    keras.utils.set_random_seed(3)
    model = make(cls)
    model.compile(
        optimizer or keras.optimizers.SGD(0.1, momentum=0.9),
        **compile_arguments(),
        **arguments,
    )
    return model


def train(
    name, cls, batch_size=10, epochs=2, optimizer=None, sizes=None, **arguments
):
    """Weights and history of a case after `fit`.

    Args:
        sizes: the sizes of the batches, instead of `batch_size`.
        **arguments: for `compile`.
    """
    model = compiled(name, cls, optimizer, **arguments)
    fit_arguments = dict(CASES[name][2], batch_size=batch_size, shuffle=False)
    if sizes is not None:
        fit_arguments = {
            "x": batches(name, sizes),
            "shuffle": False,
            "class_weight": fit_arguments.get("class_weight"),
        }
    history = model.fit(**fit_arguments, epochs=epochs, verbose=0)
    return model.get_weights(), history.history


def ours(name, mode, **arguments):
    """As `train`, by a gradient mode."""
    return train(name, kpg.PerGradModel, gradient_mode=mode, **arguments)


@functools.cache
def plain(name, execution):
    """As `train`, by `keras.Model` on batches of 10, 10 and 3."""
    return train(name, keras.Model, **EXECUTION[execution])


def assert_same(found, expected, **tolerance):
    """Asserts that weights and histories agree, at 1e-10 unless told."""
    tolerance = tolerance or {"rtol": 1e-10, "atol": 1e-10}
    (weights, history), (right, right_history) = found, expected
    assert set(history) == set(right_history)
    for key, values in right_history.items():
        np.testing.assert_allclose(
            history[key], values, **tolerance, err_msg=key
        )
    for k, (a, b) in enumerate(zip(weights, right, strict=True)):
        np.testing.assert_allclose(a, b, **tolerance, err_msg=f"variable {k}")
