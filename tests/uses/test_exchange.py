"""What a few samples show: layers, losses and terms that mix them."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests import oracle, zoo
from tests.marks import few

layers, ops = keras.layers, keras.ops
T = 4
RUNS = {
    "eager": {"run_eagerly": True},
    "graph": {"jit_compile": False},
    "xla": {"jit_compile": True},
}


class Positions(layers.Layer):
    """A table of T rows, whatever the number of samples."""

    def __init__(self):
        super().__init__()
        self.table = layers.Embedding(T, 3)

    def build(self, shape):
        self.table.build((T,))

    def call(self, x):
        return x + self.table(ops.arange(T))


class Turned(layers.Layer):
    """The samples are on the second axis inside."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def build(self, shape):
        self.inner.build((shape[1], shape[0], shape[2]))

    def call(self, x):
        x = self.inner(ops.transpose(x, (1, 0, 2)))
        return ops.transpose(x, (1, 0, 2))


class Recurrent(layers.Layer):
    """Adds what a loop makes of numbers that are the same for all samples."""

    def __init__(self):
        super().__init__()
        self.inner = layers.SimpleRNN(3)

    def build(self, shape):
        self.inner.build((1, 5, 2))

    def call(self, x):
        return x + self.inner(ops.ones((1, 5, 2)))


class Folded(Turned):
    def call(self, x):
        y = self.inner(ops.reshape(x, (-1, 1, x.shape[-1])))
        return ops.reshape(y, (-1, T, y.shape[-1]))


class Net(keras.Model):
    """Positions without a layer around them."""

    def __init__(self):
        super().__init__()
        self.table = layers.Embedding(T, 3)
        self.out = layers.Dense(2)

    def build(self, shape):
        self.table.build((T,))
        self.out.build(shape)

    def call(self, x):
        return self.out(ops.tanh(x + self.table(ops.arange(T))))


def _around(layer, cls=keras.Model):
    inputs = keras.Input((T, 3))
    x = layers.Dense(3, "tanh")(layer(layers.Dense(3)(inputs)))
    return cls(inputs, layers.Dense(2)(layers.GlobalAveragePooling1D()(x)))


def _batch(n, model):
    rng = np.random.default_rng(n)
    x = rng.normal(size=(n, T, 3)).astype(keras.config.floatx())
    y = rng.normal(size=model(x).shape).astype(keras.config.floatx())
    return x, y


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda: _around(Positions()),
        lambda: _around(Turned(layers.Dense(3))),
        lambda: _around(Folded(layers.Dense(3))),
        Net,
    ],
    ids=["positions", "turned", "folded", "model"],
)
def test_a_first_axis_that_is_not_the_samples_is_exact(make, eager):
    """The sizes may agree by chance, or not."""
    model = make()
    model.compile("sgd", "mse")
    tf.config.run_functions_eagerly(eager)
    try:
        for n in (T, T + 1):
            x, y = _batch(n, model)
            oracle.check(kpg.per_sample_gradients(model, x, y), model, x, y)
    finally:
        tf.config.run_functions_eagerly(False)


def test_the_op_that_meets_the_samples_is_said_to_serve():
    model = _around(Positions())
    rows = {row.type: row for row in kpg.explain(model, T)}
    assert "Positions" not in rows
    assert rows["Embedding"].served_by == "ops"
    assert rows["Embedding"].variables[0].ops == ("AddV2",)


class Filled(layers.Layer):
    """A weight beside a constant of the batch's shape."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def build(self, shape):
        self.w = self.add_weight(shape=shape[-1:], initializer="normal")

    def call(self, x):
        return self.function(x, tf.convert_to_tensor(self.w))


FILLED = {
    "zeros": lambda x, w: tf.tanh(x) + (tf.zeros_like(x) + w),
    "ones": lambda x, w: x * (tf.ones_like(x) * w),
    "concat": lambda x, w: tf.concat([x, tf.zeros_like(x) + w], -1),
    "mixed": lambda x, w: x[::-1] + (tf.zeros_like(x) + w),
}


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("form", FILLED)
def test_a_known_number_of_samples_may_change_the_ops(form, run):
    """TensorFlow then computes the constant while it traces the step."""
    model = _around(Filled(FILLED[form]), kpg.PerGradModel)
    x, y = _batch(T + 1, model)
    clip = kpg.Vectorized(kpg.ClippedMean(0.1))
    # Exact in float32, in which the optimizer holds it.
    sgd = keras.optimizers.SGD(0.5)
    model.compile(sgd, "mse", gradient_mode=clip, **RUNS[run])
    samples = oracle.per_sample_gradients(model, x, y)
    before = [np.array(v) for v in model.trainable_variables]
    batches = tf.data.Dataset.from_tensors((x, y))
    if form == "mixed":
        with pytest.raises(ValueError, match="mixes the samples"):
            model.fit(batches, shuffle=False, verbose=0)
        return
    model.fit(batches, shuffle=False, verbose=0)
    squares = [(g**2).reshape(len(x), -1).sum(1) for g in samples]
    factors = np.minimum(1, 0.1 / np.sqrt(np.sum(squares, 0)))
    assert factors.min() < 1
    oracle.assert_agree(
        [
            (b - np.array(v)) / 0.5
            for b, v in zip(before, model.trainable_variables)
        ],
        [np.tensordot(factors, g, 1) / len(x) for g in samples],
    )


def _lambda(function):
    return lambda: layers.Lambda(function)


class Shuffled(layers.Layer):
    """What it draws is not that of the samples."""

    def call(self, x):
        return keras.random.shuffle(x, seed=1)


class Spread(layers.Layer):
    def call(self, x):
        self.add_loss(ops.sum(ops.var(x, axis=0)))
        return x


MIXERS = [
    zoo.Centre,
    Shuffled,
    _lambda(lambda x: ops.roll(x, 1, 0)),
    _lambda(lambda x: x[::-1]),
    lambda: layers.Dense(3, lambda x: x / ops.max(x, 0, keepdims=True)),
]


@pytest.mark.parametrize("mode", ["vectorized", "per_sample"])
@pytest.mark.parametrize("run", few(RUNS, ["graph"]))
def test_layers_that_mix_samples_are_refused(run, mode):
    for make in MIXERS:
        layer = make()
        model = _around(layer, kpg.PerGradModel)
        model.compile("sgd", "mse", gradient_mode=mode, **RUNS[run])
        with pytest.raises(ValueError, match=f"'{layer.name}'.* mixes the sam"):
            model.train_on_batch(*_batch(T, model))
        (row,) = kpg.explain(model, T).refused
        assert row.layer == layer.name


@pytest.mark.parametrize("mixing", ["dense", "dense_1", "dense_1_1"])
def test_the_layer_is_named_whatever_the_others_are_called(mixing):
    """Keras opens the scopes "dense_1" and "dense_1_2" for the first two."""
    inputs = x = keras.Input((3,))
    for name in ("dense", "dense_1", "dense_1_1"):
        x = layers.Dense(3, name=name)(x)
        if name == mixing:
            parts = [keras.Input((3,)), zoo.Centre(name=name)]
            inner = keras.Sequential(parts, name="inner")
            x = inner(x)
    model = keras.Model(inputs, layers.Dense(2, name="out")(x))
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=rf"'{mixing}' \(Centre\) mixes"):
        kpg.per_sample_norms(model, np.eye(3), np.ones((3, 2)))


def test_a_model_that_mixes_samples_itself_is_refused():
    inputs = keras.Input((3,))
    x = layers.Dense(3)(inputs)
    outputs = layers.Dense(2)(x - ops.mean(x, 0, keepdims=True))
    model = keras.Model(inputs, outputs, name="whole")
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="'whole' mixes the samples"):
        kpg.per_sample_norms(model, np.eye(3), np.ones((3, 2)))


def test_a_rule_whose_layer_is_given_no_samples_is_refused():
    model = _around(Recurrent())
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"\(SimpleRNN\) has a rule, which"):
        kpg.per_sample_gradients(model, *_batch(T, model))


@pytest.mark.parametrize("method", ["vectorized", "per_sample"])
def test_added_losses_that_couple_samples_are_refused(method):
    for layer in (
        Spread(name="spread"),
        layers.Dense(3, activity_regularizer=ops.max, name="spread"),
    ):
        model = _around(layer)
        model.compile("sgd", "mse")
        with pytest.raises(
            ValueError, match=r"'spread'.* mixes the samples|neither a sum"
        ):
            kpg.per_sample_norms(model, *_batch(T, model), method=method)


@pytest.mark.parametrize("method", ["vectorized", "per_sample"])
def test_losses_that_couple_samples_are_refused(method):
    def spread(y, y_pred):
        return ops.sqrt(ops.mean(ops.square(y - y_pred)))

    def apart(y, y_pred):
        return ops.mean(ops.square(y - y_pred) * (1 + ops.max(y)))

    model = _around(layers.Dense(3))
    model.compile("sgd", spread)
    with pytest.raises(ValueError, match="compares the samples"):
        kpg.per_sample_norms(model, *_batch(T, model), method=method)
    model.compile("sgd", apart)
    with pytest.raises(ValueError, match="compares the samples"):
        kpg.per_sample_norms(model, *_batch(T, model), method=method)


class Drawing(layers.Layer):
    """Counts its calls; each sample keeps to itself."""

    def __init__(self):
        super().__init__()
        self.count = self.add_weight((), trainable=False)

    def call(self, x):
        self.count.assign_add(1)
        return x + keras.random.normal(ops.shape(x), seed=1)


def test_a_trial_leaves_nothing_behind():
    dropout = layers.Dropout(0.5, seed=3)
    model = _around(keras.Sequential([Drawing(), dropout]))
    before = [v.numpy() for v in model.variables]
    assert kpg.explain(model, T).refused == []
    for v, value in zip(model.variables, before):
        np.testing.assert_array_equal(v, value)
    assert all("call" not in vars(part) for part in model._flatten_layers())


class SameShape(layers.Layer):
    """Is not called to find the shape of its output."""

    def compute_output_shape(self, shape):
        return shape


@pytest.mark.usefixtures("float64")
def test_what_fails_on_a_few_samples_is_tried_on_its_own_number():
    class Pairs(SameShape):
        def call(self, x):
            if x.shape[0] != 8:
                raise ValueError("too few")
            return x

    model = _around(Pairs())
    model.compile("sgd", "mse")
    x = np.random.default_rng(8).normal(size=(8, T, 3))
    y = np.ones((8, 2))
    found = kpg.per_sample_gradients(model, x, y)
    means = [np.mean(g, 0) for g in found]
    oracle.assert_agree(
        means, oracle.batch_gradient(model, x, y, training=True)
    )
    assert all("call" not in vars(part) for part in model._flatten_layers())


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("method", ["vectorized", "per_sample"])
def test_one_sample_of_a_model_that_must_know_how_many(method):
    class Known(SameShape):
        def call(self, x):
            return x + np.zeros(x.shape)  # fails where one is None

    model = _around(Known())
    model.compile("sgd", "mse")
    x = np.random.default_rng(8).normal(size=(1, T, 3))
    y = np.ones((1, 2))
    found = kpg.per_sample_gradients(model, x, y, method=method)
    oracle.check(found, model, x, y)


def test_targets_of_several_classes_are_made_up():
    """A loss that compares samples of different classes is refused."""

    def apart(y, y_pred):
        same = ops.cast(ops.equal(y, ops.transpose(y)), y_pred.dtype)
        return ops.mean(
            ops.square(ops.matmul(y_pred, ops.transpose(y_pred)) * (1 - same))
        )

    model = _around(layers.Dense(3))
    model.compile("sgd", apart)
    x = _batch(T, model)[0]
    with pytest.raises(ValueError, match="compares the samples"):
        kpg.per_sample_norms(model, x, np.arange(T)[:, None] % 2)


def test_penalties_on_weights_in_the_loss_are_refused():
    model = _around(layers.Dense(3))
    kernel = model.trainable_variables[0]

    def loss(y, y_pred):
        return ops.mean(ops.square(y - y_pred)) + ops.sum(kernel**2)

    model.compile("sgd", loss)
    with pytest.raises(ValueError, match=r"kernel' .* no longer apart"):
        kpg.per_sample_norms(model, *_batch(T, model))


def test_a_model_of_integers_is_tried_on_several_samples():
    inputs = keras.Input((None,), dtype="int32")
    x = layers.Embedding(3, 2)(inputs)
    model = keras.Model(inputs, layers.GlobalAveragePooling1D()(x))
    assert kpg.explain(model, 4).rows[0].served_by == "ops"


class OneNumber(layers.Layer):
    """Draws one number for all samples."""

    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(5)

    def call(self, x):
        return x * (1 + keras.random.uniform((), seed=self.seeds))


def test_one_number_for_all_samples_is_the_same_for_each():
    inputs = keras.Input((6, 6, 2))
    x = OneNumber()(layers.Conv2D(3, 2, activation="tanh")(inputs))
    model = keras.Model(inputs, layers.Dense(2)(layers.Flatten()(x)))
    model.compile("sgd", "mse")
    data = np.random.default_rng(0).normal(size=(5, 6, 6, 2))
    found, alone = (
        kpg.per_sample_gradients(
            model, data, data[:, 0, 0], method=method, verbose=0
        )
        for method in ("vectorized", "per_sample")
    )
    oracle.assert_agree(found, alone)
    assert np.ptp(found[0]) > 0
