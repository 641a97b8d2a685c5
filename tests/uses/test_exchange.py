"""What mixes samples is refused by name; what only looks so is exact."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests import oracle, zoo
from tests.marks import few
from tests.models.making import (
    assert_equal,
    compiled,
    net,
    normal,
    trained,
    weights,
)
from tests.uses.own_layer import Own

layers, ops = keras.layers, keras.ops
T = 4
METHODS = ["vectorized", "per_sample"]
RUNS = {
    "eager": {"run_eagerly": True},
    "graph": {"jit_compile": False},
    "xla": {"jit_compile": True},
}


class Inner(layers.Layer):
    """A function of its input and of a layer that is built for a shape."""

    def __init__(self, function, inner, shape):
        super().__init__()
        self.function, self.inner, self.shape = function, inner, shape

    def build(self, shape):
        self.inner.build(self.shape)

    def call(self, x):
        return self.function(x, self.inner)


def _positions():
    """Adds a table of T rows, whatever the number of samples."""
    table = layers.Embedding(T, 3)
    return Inner(lambda x, table: x + table(ops.arange(T)), table, (T,))


def _recurrent():
    """Adds what a loop makes of numbers that are the same for all samples."""
    shape = 1, 5, 2
    rnn = layers.SimpleRNN(3)
    return Inner(lambda x, rnn: x + rnn(ops.ones(shape)), rnn, shape)


def _turned():
    """The samples are on the second axis inside."""

    def call(x, inner):
        return ops.transpose(inner(ops.transpose(x, (1, 0, 2))), (1, 0, 2))

    return Inner(call, layers.Dense(3), (T, None, 3))


def _folded():
    def call(x, inner):
        return ops.reshape(inner(ops.reshape(x, (-1, 1, 3))), (-1, T, 3))

    return Inner(call, layers.Dense(3), (None, 1, 3))


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


def _around(layer, cls=keras.Model, shape=(T, 3)):
    inputs = keras.Input(shape)
    x = layers.Dense(3, "tanh")(layer(layers.Dense(3)(inputs)))
    x = ops.mean(x, tuple(range(1, len(shape))))
    return cls(inputs, layers.Dense(2)(x))


def _batch(n, model, shape=(T, 3)):
    x = normal(n, *shape, seed=n)
    return x, normal(*model(x).shape, seed=n + 1)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda: _around(_positions()),
        lambda: _around(_turned()),
        lambda: _around(_folded()),
        Net,
    ],
    ids=["positions", "turned", "folded", "model"],
)
def test_a_first_axis_that_is_not_the_samples_is_exact(make, eager):
    """The sizes may agree by chance, or not."""
    model = compiled(make())
    tf.config.run_functions_eagerly(eager)
    try:
        for n in (T, T + 1):
            x, y = _batch(n, model)
            oracle.check(kpg.per_sample_gradients(model, x, y), model, x, y=y)
    finally:
        tf.config.run_functions_eagerly(False)


def test_the_op_that_meets_the_samples_is_said_to_serve():
    model = _around(_positions())
    rows = {row.type: row for row in kpg.explain(model, T)}
    assert "Inner" not in rows
    assert rows["Embedding"].served_by == "ops"
    assert rows["Embedding"].variables[0].ops == ("AddV2",)


#: A weight beside a constant of the batch's shape.
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
    model = _around(Own(FILLED[form], (3,)), kpg.PerGradModel)
    x, y = _batch(T + 1, model)
    clip = kpg.Vectorized(kpg.ClippedMean(0.1))
    # The rate is exact in float32, in which the optimizer holds it.
    compiled(model, clip, rate=0.5, **RUNS[run])
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


MIXERS = (
    zoo.Centre,
    lambda: layers.Lambda(lambda x: keras.random.shuffle(x, seed=1)),
    lambda: layers.Dense(3, lambda x: x / ops.max(x, 0, keepdims=True)),
    lambda: layers.Softmax(axis=0),
    lambda: layers.Softmax(axis=(1, -3)),
    lambda: layers.UnitNormalization(axis=0),
    layers.MixUp,
    lambda: layers.Pipeline([layers.Rescaling(2.0), layers.MixUp()]),
)


@pytest.mark.parametrize("mode", METHODS)
@pytest.mark.parametrize("run", few(RUNS, ["graph"]))
def test_layers_that_mix_samples_are_refused(run, mode):
    """Before any weight changes."""
    for make in MIXERS:
        layer = make()
        cls, name, what = type(layer).__name__, layer.name, "samples"
        if cls in ("MixUp", "Pipeline"):
            cls, name, what = "MixUp", ".*", "images"
        shape = (T, T, 3) if what == "images" else (T, 3)
        model = _around(layer, kpg.PerGradModel, shape)
        compiled(model, mode, **RUNS[run])
        before = model.get_weights()
        message = rf"'{name}' \({cls}\) mixes the {what}"
        with pytest.raises(ValueError, match=message):
            model.fit(*_batch(T, model, shape), verbose=0)
        assert_equal(model.get_weights(), before)
        (row,) = kpg.explain(model, T).refused
        assert name in (row.layer, ".*")


@pytest.mark.parametrize(
    "name", ["AugMix", "CutMix", "Equalization", "RandAugment"]
)
def test_image_layers_that_mix_samples_are_refused(name):
    if not hasattr(layers, name):
        pytest.skip(f"this Keras has no {name}")

    class Images(kpg.PerGradModel):
        def __init__(self):
            super().__init__()
            self.mixer = getattr(layers, name)()
            self.out = layers.Dense(3)

        def call(self, x):
            x = ops.cast(self.mixer(x), "float32")
            return self.out(ops.reshape(x, (-1, 48)))

    x = np.random.default_rng(2).uniform(size=(4, 4, 4, 3)).astype("float32")
    model = compiled(Images(), "vectorized", run_eagerly=True)
    with pytest.raises(ValueError, match=rf"\({name}\)"):
        model.fit(x, x[:, 0, 0], verbose=0)


def test_mixers_rest_outside_training():
    model = compiled(_around(layers.MixUp(), shape=(T, T, 3)))
    x, y = _batch(T, model, (T, T, 3))
    found = kpg.per_sample_gradients(model, x, y, training=False)
    oracle.check(found, model, x, y=y, training=False)


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
    model = compiled(keras.Model(inputs, layers.Dense(2, name="out")(x)))
    with pytest.raises(ValueError, match=rf"'{mixing}' \(Centre\) mixes"):
        kpg.per_sample_norms(model, np.eye(3), np.ones((3, 2)))


def _centred():
    inputs = keras.Input((T, 3))
    x = layers.Dense(3)(inputs)
    x = x - ops.mean(x, 0, keepdims=True)
    return keras.Model(inputs, layers.Dense(2)(x), name="whole")


def _cut_in_two():
    cut = layers.Flatten(), layers.Dense(4), lambda x: ops.reshape(x, (-1, 2))
    return net(*cut, shape=(T, 3), units=None)


#: Name: a model, and the number of samples of y.
MODELS = {
    "'whole' mixes the samples": (_centred, T),
    "x with 4, y with 8": (_cut_in_two, 2 * T),
    r"\(SimpleRNN\) has a rule, which": (lambda: _around(_recurrent()), T),
}


@pytest.mark.parametrize("message", MODELS)
def test_models_that_mix_samples_are_refused(message):
    make, count = MODELS[message]
    model = compiled(make())
    x, y = normal(T, T, 3), normal(count, *model.output_shape[1:])
    with pytest.raises(ValueError, match=message):
        kpg.per_sample_gradients(model, x, y)


def test_concatenating_batches_is_refused():
    dense = layers.Dense(3)
    model = net(
        lambda x: layers.Concatenate(axis=0)([dense(x), dense(x)]), shape=(4,)
    )
    model = compiled(model, "vectorized")
    with pytest.raises(
        ValueError, match="not fit for every number of samples n"
    ):
        model.fit(normal(T, 4), normal(T, 3), verbose=0)


ONES = np.ones((4, 3), "float32")
#: Name: what makes a loss, and targets.
LOSSES = {
    "dice": (lambda: "dice", ONES),
    "dice of axes": (lambda: keras.losses.Dice(axis=(0, 1)), ONES),
    "tversky": (keras.losses.Tversky, ONES),
    "circle": (keras.losses.Circle, np.arange(4) % 2),
}


def _sigmoid(loss):
    outputs = layers.Dense(3, "sigmoid")
    return compiled(net(outputs, shape=(4,), units=None), loss=loss)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", LOSSES)
def test_losses_that_compare_samples_are_refused(name, method):
    make, y = LOSSES[name]
    model = _sigmoid(make())
    with pytest.raises(ValueError, match="compares the samples of a batch"):
        kpg.per_sample_norms(model, normal(4, 4), y, method=method)


def test_an_overlap_of_each_sample_is_served():
    if "axis" not in keras.losses.Dice().get_config():
        pytest.skip("Dice has no axes in this Keras")
    model = _sigmoid(keras.losses.Dice(axis=(1,)))
    x, y = normal(4, 4), np.eye(4, 3, dtype="float32")
    oracle.check(kpg.per_sample_gradients(model, x, y), model, x, y=y)


class Spread(layers.Layer):
    def call(self, x):
        self.add_loss(ops.sum(ops.var(x, axis=0)))
        return x


@pytest.mark.parametrize("method", METHODS)
def test_added_losses_that_couple_samples_are_refused(method):
    for layer in (
        Spread(name="spread"),
        layers.Dense(3, activity_regularizer=ops.max, name="spread"),
    ):
        model = compiled(_around(layer))
        with pytest.raises(
            ValueError, match=r"'spread'.* mixes the samples|neither a sum"
        ):
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
    before = weights(model)
    assert kpg.explain(model, T).refused == []
    assert_equal(model, before)
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

    model = compiled(_around(Pairs()))
    x, y = normal(8, T, 3), np.ones((8, 2))
    found = kpg.per_sample_gradients(model, x, y)
    means = [np.mean(g, 0) for g in found]
    oracle.assert_agree(
        means, oracle.batch_gradient(model, x, y, training=True)
    )
    assert all("call" not in vars(part) for part in model._flatten_layers())


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("method", METHODS)
def test_one_sample_of_a_model_that_must_know_how_many(method):
    class Known(SameShape):
        def call(self, x):
            return x + np.zeros(x.shape)  # fails where one is None

    model = compiled(_around(Known()))
    x, y = normal(1, T, 3), np.ones((1, 2))
    found = kpg.per_sample_gradients(model, x, y, method=method)
    oracle.check(found, model, x, y=y)


def test_a_model_of_integers_is_tried_on_several_samples():
    parts = layers.Embedding(3, 2), layers.GlobalAveragePooling1D()
    model = net(*parts, shape=(None,), dtype="int32", units=None)
    assert kpg.explain(model, 4).rows[0].served_by == "ops"


class OneNumber(layers.Layer):
    """Draws one number for all samples."""

    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(5)

    def call(self, x):
        return x * (1 + keras.random.uniform((), seed=self.seeds))


def test_one_number_for_all_samples_is_the_same_in_one_pass():
    """Sample by sample each draws its own."""
    parts = layers.Conv2D(3, 2, activation="tanh"), OneNumber()
    model = net(*parts, layers.Flatten(), shape=(6, 6, 2), units=2)
    compiled(model)
    data = normal(5, 6, 6, 2)
    batch = data, data[:, 0, 0]
    found, alone, again = (
        kpg.per_sample_gradients(model, *batch, method=method)
        for method in ("vectorized", "per_sample", "per_sample")
    )
    means = [np.mean(g, 0) for g in found]
    oracle.assert_agree(
        means, oracle.batch_gradient(model, *batch, training=True)
    )
    oracle.assert_agree(alone, again)
    assert not np.allclose(found[0], alone[0], rtol=1e-3)


@pytest.mark.usefixtures("float64")
def test_a_weight_of_the_model_itself_is_exact():
    class Scaled(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(3)

        def build(self, shape):
            self.scale = self.add_weight((shape[-1],), "ones", name="scale")
            self.dense.build(shape)

        def call(self, x):
            return self.dense(ops.tanh(x * self.scale)) + self.scale[:3]

    model = compiled(Scaled())
    x, y = normal(5, 4), normal(5, 3, seed=1)
    found = kpg.per_sample_gradients(model, x, y)
    oracle.check(found, model, x, y=y)
    table = kpg.explain(model, 5, x=x)
    assert {r.type: r.served_by for r in table} == {
        "Scaled": "ops",
        "Dense": "ops",
    }


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("method", METHODS)
def test_a_loss_that_adds_a_weight_to_every_sample_is_exact(method):
    dense = layers.Dense(3, kernel_regularizer="l2")

    def loss(y, y_pred):
        value = ops.mean((y - y_pred) ** 2, -1)
        return value + ops.sum(dense.kernel**4)

    model = compiled(net(dense, shape=(4,), units=None), loss=loss)
    x, y = normal(4, 4), normal(4, 3, seed=1)
    singles = [
        oracle.batch_gradient(model, x[i : i + 1], y[i : i + 1])
        for i in range(4)
    ]
    expected = [np.stack(g) for g in zip(*singles)]
    found = kpg.per_sample_gradients(model, x, y, method=method)
    oracle.assert_agree(found, expected)


class Towers(kpg.PerGradModel):
    """A model whose loss calls a layer of its own, with dropout."""

    def __init__(self, reduce, rate):
        super().__init__()
        self.reduce = reduce
        self.query = layers.Dense(3)
        self.candidate = layers.Dense(3, kernel_regularizer="l2")
        self.dropout = layers.Dropout(rate, seed=1)

    def call(self, x):
        return self.query(x)

    def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
        found = self.dropout(self.candidate(y), training=training)
        loss = ops.sum((y_pred * found - y) ** 2, -1)
        return self.reduce(loss, y) + sum(self.candidate.losses)


def _trained_towers(reduce, mode, rate=0.5, **how):
    keras.utils.set_random_seed(1)
    model = compiled(Towers(reduce, rate), mode, None, **how)
    data = normal(6, 4), normal(6, 3, seed=1)
    return trained(model, *data, batch_size=6).get_weights()


@pytest.mark.usefixtures("float64")
@pytest.mark.filterwarnings("ignore:`build:UserWarning")
@pytest.mark.parametrize("how", ["graph", "eager", "xla"])
def test_a_layer_of_the_loss_is_clipped_one_by_one(how):
    # With dropout each mode has draws of its own.
    how = {"run_eagerly": how == "eager", "jit_compile": how == "xla"}
    how["rate"] = 0.0

    def mean(loss, y):
        return ops.mean(loss)

    clipped = kpg.ClippedMean(0.5)
    found = _trained_towers(mean, kpg.PerSample(clipped), **how)
    expected = _trained_towers(mean, kpg.Vectorized(clipped), **how)
    assert_equal(found, expected, 1e-9, atol=1e-12)


def _over_root(loss, y):
    return ops.sum(loss) / ops.sqrt(ops.cast(ops.shape(y)[0], loss.dtype))


def _over_mask(loss, y):
    mask = ops.cast(y[:, 0] > 0, loss.dtype)
    return ops.sum(loss * mask) / ops.sum(mask)


@pytest.mark.filterwarnings("ignore:`build:UserWarning")
@pytest.mark.parametrize(
    ("reduce", "match"),
    [(_over_root, "neither a sum nor a mean"), (_over_mask, "divides by")],
)
def test_a_loss_that_no_sample_has_alone_is_refused(reduce, match):
    errors = ValueError, tf.errors.InvalidArgumentError
    with pytest.raises(errors, match=match):
        _trained_towers(reduce, "per_sample")


@pytest.mark.parametrize("mode", METHODS)
def test_a_regulariser_is_as_before_after_a_step(mode):
    dense = layers.Dense(3, kernel_regularizer="l2")
    model = compiled(net(dense, shape=(4,), units=None), mode)
    regularizer = dense.kernel.regularizer
    trained(model, normal(4, 4), normal(4, 3))
    assert dense.kernel.regularizer is regularizer
