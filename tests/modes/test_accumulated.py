"""Microbatches inside a step: their sum is the big batch."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests.marks import few
from tests.models.making import (
    assert_equal,
    compiled,
    integers,
    net,
    normal,
    trained,
    unchanged,
)
from tests.modes.big_batch import (
    CASES,
    EXECUTION,
    assert_same,
    dense,
    ours,
    plain,
    train,
)

# One of each kind: compiling takes seconds.
XLA = ("masked-mean_with_sample_weight-weighted", "outputs-mixed", "added")
RUNS = [(n, e) for n in CASES for e in EXECUTION if e != "xla" or n in XLA]
QUICK = [(n, "graph") for n in XLA] + [
    ("class_weight", "graph"),
    ("function", "eager"),
    ("sum-weighted", "eager"),
    ("added", "xla"),
]


def split(name, size=4, **arguments):
    """Train a case in microbatches."""
    return ours(name, kpg.Accumulated(microbatch_size=size), **arguments)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(("name", "execution"), few(RUNS, QUICK, RUNS[::2]))
def test_equals_the_big_batch(name, execution):
    # Batches of 10, 10 and 3 in microbatches of 4, 4, 2 and 3.
    found = split(name, **EXECUTION[execution])
    # Only the logs of several outputs' losses depend on the execution.
    alike = execution if name.startswith("outputs") else "graph"
    assert_same(found, plain(name, alike))


def _averaging():
    return keras.optimizers.AdamW(
        keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5),
        use_ema=True,
        ema_overwrite_frequency=2,
        global_clipnorm=0.1,
    )


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        # 20 + 3 = 23: the second trace is for any size, whose rest is then 0.
        ("class_weight", lambda: {"batch_size": 20}),
        ("class_weight", lambda: {"batch_size": 20, "jit_compile": True}),
        ("added", lambda: {"steps_per_execution": 3}),
        # It is called once a batch.
        ("sum-plain", lambda: {"optimizer": _averaging()}),
    ],
    ids=["nothing left", "nothing left, XLA", "several steps", "optimizer"],
)
def test_settings_of_a_training(name, settings):
    def how():
        return {"jit_compile": False, **settings()}

    assert_same(split(name, **how()), train(name, keras.Model, **how()))


class Counts(keras.layers.Layer):
    """Counts its calls and what it saw, and multiplies by the calls."""

    def __init__(self, before):
        super().__init__()
        self.before = before

    def build(self, shape):
        counter = {"trainable": False, "initializer": "zeros"}
        self.calls = self.add_weight(name="calls", **counter)
        self.samples = self.add_weight(name="samples", **counter)
        self.total = self.add_weight(name="total", **counter)

    def call(self, x, training=None):
        factor = 1 + self.calls
        if training:
            self.calls.assign_add(1)
            rows = keras.ops.cast(keras.ops.shape(x)[0], x.dtype)
            self.samples.assign_add(rows)
            self.total.assign_add(keras.ops.sum(x))
        return x * (factor if self.before else self.calls)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("execution", EXECUTION)
def test_counters_count_batches(execution):
    # In microbatches of 4, 4 and 2.
    found = []
    for inner in (None, "batch", "vectorized", "per_sample"):
        keras.utils.set_random_seed(1)
        parts = Counts(before=True), keras.layers.Dense(3), Counts(before=False)
        model = net(*parts, shape=(3,), units=2)
        mode = inner and kpg.Accumulated(microbatch_size=4, inner=inner)
        model = compiled(model, mode, rate=0.01, **EXECUTION[execution])
        for _ in range(2):
            model.train_on_batch(normal(10, 3), normal(10, 2, seed=1))
        found.append(model.get_weights())
        calls = [v for v in model.weights if v.path.endswith("calls")]
        assert np.array(calls).tolist() == [2, 2]
    for weights in found[1:]:
        assert_equal(weights, found[0], rtol=1e-10)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("inner", [kpg.Vectorized, kpg.PerSample])
def test_look_ups_that_are_clipped_eagerly(inner):
    # In microbatches of 4, 4 and 2, whose gradients hold rows of the table.
    clips = inner(aggregation=kpg.ClippedMean(0.1))
    x = integers(5, 10, 3)
    found = []
    for mode in (clips, kpg.Accumulated(microbatch_size=4, inner=clips)):
        keras.utils.set_random_seed(1)
        parts = keras.layers.Embedding(5, 4), keras.layers.Flatten()
        model = net(*parts, shape=(3,), dtype="int32", units=1)
        model = compiled(model, mode, rate=0.01, run_eagerly=True)
        model.train_on_batch(x, x[:, :1])
        found.append(model.get_weights())
    assert_equal(*found, rtol=1e-10, atol=1e-12)


class Relative(keras.layers.Layer):
    """Looks a number up in a table of one row, whatever its input is."""

    def build(self, input_shape):
        self.table = self.add_weight(shape=(1,), initializer="ones")

    def call(self, x):
        return x + keras.ops.take(self.table, [0] * x.shape[-1])


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("run_eagerly", [True, False])
def test_gradients_of_a_table_with_one_row(run_eagerly):
    never = kpg.ClippedMean(1e9)
    how = {"run_eagerly": run_eagerly, "jit_compile": False}
    found = []
    for inner in (None, kpg.Vectorized, kpg.PerSample):
        mode = inner and kpg.Accumulated(microbatch_size=2, inner=inner(never))
        model = net(Relative(), shape=(3,), units=1, seed=1)
        model = compiled(model, mode, rate=0.01, **how)
        model.train_on_batch(normal(5, 3), normal(5, 1, seed=1))
        found.append(model.get_weights())
    for weights in found[1:]:
        assert_equal(weights, found[0], rtol=1e-10, atol=1e-12)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("size", [1, 1000])
def test_any_microbatch_size(size):
    name = "masked-sum_over_batch_size-weighted"
    assert_same(split(name, size, jit_compile=False), plain(name, "graph"))


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(policy):
    keras.config.set_dtype_policy(policy)
    name = "masked-sum_over_batch_size-plain"
    found = split(name, jit_compile=False)
    expected = train(name, keras.Model, jit_compile=False)
    assert_same(found, expected, rtol=2e-2, atol=2e-2)


def test_batch_normalization_and_dropout_run():
    norm = keras.layers.BatchNormalization()
    dropout = keras.layers.Dropout(0.5)
    model = net(keras.layers.Dense(4), norm, dropout, cls=kpg.PerGradModel)
    compiled(model, kpg.Accumulated(microbatch_size=4), jit_compile=False)
    seed = dropout.seed_generator.state
    before = norm.moving_mean.numpy(), seed.numpy()
    model.fit(np.ones((10, 5)), np.ones((10, 3)), batch_size=10, verbose=0)
    assert np.abs(norm.moving_mean.numpy() - before[0]).max() > 0
    # A draw for each of three microbatches, and no other.
    assert seed.numpy()[1] - before[1][1] == 3


def _trace(rows):
    model = compiled(dense(keras.Model), kpg.Accumulated(microbatch_size=4))
    model.optimizer.build(model.trainable_variables)
    x, y = tf.zeros([rows, 5]), tf.zeros([rows, 3])
    step = tf.function(model.train_step, autograph=False)
    graph = step.get_concrete_function((x, y)).graph
    functions = graph.as_graph_def().library.function
    nodes = sum(len(f.node_def) for f in functions)
    return nodes + len(graph.get_operations())


def test_trace_does_not_grow_with_the_batch():
    assert _trace(8) == _trace(4000)


def test_no_retracing():
    traces = []

    class Counting(kpg.Accumulated):
        def step(self, *args):
            traces.append(1)
            return super().step(*args)

    model = compiled(dense(keras.Model), Counting(microbatch_size=4))
    trained(model, np.ones((23, 5)), np.ones((23, 3)), batch_size=10, epochs=4)
    assert len(traces) == 1


def test_the_batch_stays_whole_unless_a_size_is_given():
    """BatchNormalization sees the user's batch, as with plain Keras."""
    x = np.random.default_rng(0).normal(size=(80, 5))

    def first_loss(batch_size, mode=None):
        model = net(keras.layers.BatchNormalization(), seed=1)
        model = compiled(model, mode, rate=0.0)
        trained(model, x, x[:, :3], batch_size=batch_size)
        return model.history.history["loss"][0]

    for mode, size in (
        (kpg.Accumulated(), 80),
        (kpg.Accumulated(steps=2), 40),
        (kpg.Accumulated(microbatch_size=80), 80),
    ):
        found = first_loss(size, mode)
        assert found == pytest.approx(first_loss(size), rel=1e-6)
    split = kpg.Accumulated(microbatch_size=32)
    found = first_loss(80, split)
    assert abs(found / first_loss(80) - 1) > 1e-3


def test_modes_and_aggregations_show_their_arguments():
    assert repr(kpg.modes.get("accumulated")) == (
        "Accumulated(steps=1, microbatch_size=None, inner=Batch())"
    )
    assert repr(kpg.Accumulated(4, 8, tail="keep")) == (
        "Accumulated(steps=4, microbatch_size=8, inner=Batch(), tail='keep')"
    )
    inner = kpg.PerSample(kpg.ClippedMean(2.0))
    assert repr(kpg.Accumulated(2, inner=inner)) == (
        "Accumulated(steps=2, microbatch_size=None, "
        "inner=PerSample(aggregation=ClippedMean(clip_norm=2.0)))"
    )
    assert repr(kpg.aggregations.Mean()) == "Mean()"


class OwnCall(keras.losses.MeanSquaredError):
    def __call__(self, y_true, y_pred, sample_weight=None):
        return super().__call__(y_true, y_pred, sample_weight) ** 2


def _one_number(y_true, y_pred):
    return keras.ops.mean((y_true - y_pred) ** 2)


def _by_column(y_true, y_pred):
    return keras.ops.mean((y_true - y_pred) ** 2, axis=0)


class Root(keras.layers.Layer):
    """Adds a loss that is neither a sum nor a mean."""

    def call(self, x):
        self.add_loss(keras.ops.sqrt(keras.ops.sum(x**2)))
        return x


class OwnLoss(kpg.PerGradModel):
    def compute_loss(self, *args, **kwargs):
        return 2 * super().compute_loss(*args, **kwargs)


def _split(*parts, loss="mse", size=4, cls=kpg.PerGradModel, **settings):
    mode = kpg.Accumulated(microbatch_size=size)
    return compiled(net(*parts, cls=cls, **settings), mode, loss)


def _root():
    parts = keras.layers.Dense(3), Root()
    return _split(*parts, units=None, size=None)


LOSSES = {
    "'own' cannot be .* overrides __call__": OwnCall(name="own"),
    "'_one_number' cannot be .* one number for the batch": _one_number,
    r"values of shape \(3,\) for 4 samples": _by_column,
    "'dice' cannot .* one number for the batch": keras.losses.Dice(),
    "compares the samples of a batch": keras.losses.Circle(),
    "has no reduction|must be one number": keras.losses.MeanSquaredError(
        reduction=None
    ),
}
REFUSED = {
    **{
        why: lambda loss=loss: _split(loss=loss) for why, loss in LOSSES.items()
    },
    "OwnLoss overrides compute_loss": lambda: _split(cls=OwnLoss, size=None),
    "'root' .* mixes the samples": _root,
    "differ in their number of axes": lambda: _split(shape=(4, 5)),
}
FLAT = np.ones((10, 5)), np.ones((10, 3)), None
# Four positions, microbatches of four samples: the product would exist.
ALONG = np.ones((8, 4, 5)), np.ones((8, 4, 3)), np.ones(8)


@pytest.mark.parametrize("why", REFUSED)
def test_losses_that_do_not_add_up_are_refused(why):
    model = REFUSED[why]()
    x, y, weights = FLAT if model.input.ndim == 2 else ALONG
    wrong = ValueError, tf.errors.InvalidArgumentError
    with unchanged(model), pytest.raises(wrong, match=why):
        trained(model, x, y, sample_weight=weights)


def test_nothing_stays_patched_when_the_loss_raises():
    def broken(y_true, y_pred):
        raise RuntimeError("broken on purpose")

    model = compiled(dense(keras.Model), "accumulated", run_eagerly=True)
    x, y = np.ones((4, 5)), np.ones((4, 3))
    model.train_on_batch(x, y)
    entry = model._compile_loss._flat_losses[0]
    entry.loss.fn = broken
    attributes = set(vars(entry.loss)), set(vars(model.layers[1]))
    with pytest.raises(RuntimeError, match="broken on purpose"):
        model.train_on_batch(x, y)
    assert model._compile_loss._flat_losses[0] is entry
    assert attributes == (set(vars(entry.loss)), set(vars(model.layers[1])))
    assert entry.loss.reduction == "sum_over_batch_size"
