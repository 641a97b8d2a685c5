"""Defects that users met: wrong answers, lost state, needless refusals.

Where nothing is said of how a case must be served, a refusal (an error of
this package) is right as well: only a wrong answer is not.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers as L
from keras import ops

import keras_pergrad as kpg

REFUSALS = (ValueError, NotImplementedError, tf.errors.InvalidArgumentError)
IN_TWOS = kpg.Accumulated(microbatch_size=2)


def normal(*shape):
    return np.random.default_rng(0).normal(size=shape).astype("float32")


def distance(found, expected):
    """The largest difference over lists of arrays, in parts of the arrays."""
    return max(
        float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-9))
        for a, b in zip(map(np.asarray, found), map(np.asarray, expected))
    )


def trained(make, x, y, mode=None, epochs=1, rate=0.1):
    """The weights after training with a mode, or with plain Keras."""
    keras.utils.set_random_seed(1)
    model, arguments = make(), {}
    if mode is not None:
        model = kpg.PerGradModel.from_model(model)
        arguments = {"gradient_mode": mode}
    model.compile(keras.optimizers.SGD(rate), "mse", **arguments)
    batch = {"batch_size": len(y), "shuffle": False}
    model.fit(x, y, epochs=epochs, verbose=0, **batch)
    return [np.asarray(w) for w in model.weights]


def ordinary_gradient(model, x, y, variable, training=True):
    with tf.GradientTape() as tape:
        loss = model.compute_loss(x, y, model(x, training=training))
    return tf.convert_to_tensor(tape.gradient(loss, variable.value))


# --- Training goes as with keras.Model -----------------------------------


def functional(*layers, size=5, units=3):
    """A model of these layers and a Dense layer."""
    inputs = h = keras.Input((size,))
    for layer in layers:
        h = layer(h)
    return keras.Model(inputs, L.Dense(units)(h))


class LossBehindOwnWeight(L.Layer):
    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")
        self.inner = L.Dense(4, activity_regularizer=keras.regularizers.L2(1.0))
        self.inner.build(shape)
        self.outer = L.Dense(3)
        self.outer.build((None, 4))

    def call(self, x):
        return self.outer(self.inner(x * self.scale))


class AssignsItsKernel(L.Layer):
    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 4))

    def call(self, x, training=None):
        if training:
            self.kernel.assign(ops.sign(self.kernel) * 0.3)
        return ops.matmul(x, self.kernel)


class ClipsBackward(L.Layer):
    """The identity, whose gradient is clipped by the norm of the batch's."""

    def call(self, x):
        @tf.custom_gradient
        def clipped(x):
            return tf.identity(x), lambda dy: tf.clip_by_norm(dy, 0.05)

        return clipped(x)


class SameTwice(L.Layer):
    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 4))

    def call(self, x):
        h = ops.matmul(x, self.kernel)
        return h, h


class WithItsSquare(SameTwice):
    def call(self, x):
        h = ops.tanh(ops.matmul(x, self.kernel))
        return h, ops.sum(h**2, -1, keepdims=True)


class AnnealedLoss(L.Layer):
    """Adds a loss that grows with the number of calls."""

    def build(self, shape):
        self.calls = self.add_weight(
            shape=(), initializer="zeros", trainable=False
        )

    def call(self, x, training=None):
        if training:
            self.calls.assign_add(1.0)
        self.add_loss(self.calls / 10 * ops.mean(ops.sum(x**2, -1)))
        return x


class SumLoss(L.Layer):
    """Adds a sum over the samples, which is zero where all inputs are."""

    def call(self, x):
        self.add_loss(0.1 * ops.sum(x))
        return x


class OwnLoss(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = L.Dense(3)

    def call(self, x):
        return self.dense(x)

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        return 7 * ops.mean(ops.abs(y - y_pred))


def joined(layer, *before):
    """A model in which two outputs of a layer meet again."""
    inputs = h = keras.Input((5,))
    for other in before:
        h = other(h)
    first, second = layer(h)
    return keras.Model(inputs, L.Add()([L.Dense(3)(first), L.Dense(3)(second)]))


def pulled_together():
    """Two layers; the regulariser of one reads the other's kernel."""
    inputs = keras.Input((5,))
    first = L.Dense(4)

    def near(kernel):
        return 0.5 * ops.sum((kernel - first.kernel) ** 2)

    second = L.Dense(4, kernel_regularizer=near)
    h = L.Add()([first(inputs), second(inputs)])
    return keras.Model(inputs, L.Dense(3)(h))


def standardised_on_the_instance():
    convolution = L.Conv2D(3, 3)
    plain = convolution.convolution_op

    def standardised(x, kernel):
        kernel = (kernel - ops.mean(kernel)) / (ops.std(kernel) + 1e-3)
        return plain(x, kernel)

    convolution.convolution_op = standardised
    return keras.Sequential(
        [keras.Input((8, 8, 2)), convolution, L.Flatten(), L.Dense(3)]
    )


def spectrally_normalised():
    dense = L.SpectralNormalization(L.Dense(4), power_iterations=20)
    return keras.Sequential([keras.Input((5,)), dense, L.Dense(3)])


TRAINS = {
    "loss behind a layer's own weight": (
        lambda: keras.Sequential([keras.Input((5,)), LossBehindOwnWeight()]),
        ["vectorized", "per_sample"],
        {"rate": 0.01},
    ),
    "weight assigned in call": (
        lambda: functional(AssignsItsKernel()),
        ["vectorized", "per_sample", IN_TWOS],
        {},
    ),
    "custom gradient over the batch": (
        lambda: functional(L.Dense(4), ClipsBackward()),
        ["per_sample", IN_TWOS],
        {},
    ),
    "the same output twice": (
        lambda: joined(SameTwice()),
        ["vectorized", "per_sample"],
        {},
    ),
    "an output and its square": (
        lambda: joined(WithItsSquare(), L.Dense(4)),
        ["vectorized"],
        {},
    ),
    "compute_loss of one's own": (OwnLoss, ["batch", "vectorized"], {}),
    "convolution_op of an instance": (
        standardised_on_the_instance,
        ["vectorized"],
        {"rate": 0.001, "x": normal(6, 8, 8, 2)},
    ),
    "annealed loss": (
        lambda: functional(L.Dense(4), AnnealedLoss()),
        ["vectorized", "per_sample", IN_TWOS],
        {},
    ),
    "regulariser of another variable": (
        pulled_together,
        ["vectorized", "per_sample", "accumulated"],
        {},
    ),
    "spectral normalisation": (
        spectrally_normalised,
        ["vectorized", "per_sample", IN_TWOS],
        {"epochs": 3},
    ),
    "added sum of value zero": (
        lambda: functional(L.Dense(4, kernel_initializer="zeros"), SumLoss()),
        ["vectorized", "per_sample", IN_TWOS],
        {},
    ),
}


def label(mode):
    return "in twos" if mode is IN_TWOS else mode


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        pytest.param(name, mode, id=f"{name}, {label(mode)}")
        for name, (_, modes, _) in TRAINS.items()
        for mode in modes
    ],
)
def test_trains_as_keras_or_is_refused(name, mode):
    make, _, arguments = TRAINS[name]
    arguments = {"x": normal(6, 5), "y": normal(6, 3), **arguments}
    expected = trained(make, **arguments)
    try:
        found = trained(make, mode=mode, **arguments)
    except REFUSALS:
        return
    assert distance(found, expected) < 1e-3


# --- Means of per-sample gradients are the ordinary gradient -------------


class Gate(L.Layer):
    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], shape[-1]))

    def call(self, x):
        return ops.sigmoid(ops.matmul(x, self.kernel))


def test_gradient_through_an_own_sigmoid_is_counted_once():
    gate = Gate()
    model = functional(L.Dense(4), gate)
    model.compile("sgd", "mse")
    x, y = normal(6, 5), normal(6, 3)
    expected = ordinary_gradient(model, x, y, gate.kernel)
    for method in ("vectorized", "per_sample"):
        found = kpg.per_sample_gradients(model, x, y, method=method)[2]
        assert distance([np.mean(found, 0)], [expected]) < 1e-3


def test_gradient_of_an_attention_that_gives_its_scores_is_counted_once():
    inputs = keras.Input((6, 5))
    h, attention = L.Dense(4)(inputs), L.Attention(use_scale=True)
    out, _ = attention([h, h], return_attention_scores=True)
    model = keras.Model(inputs, L.Dense(3)(L.Flatten()(out)))
    model.compile("sgd", "mse")
    x, y = normal(5, 6, 5), normal(5, 3)
    found = kpg.per_sample_gradients(model, x, y)[2]
    expected = ordinary_gradient(model, x, y, attention.scale)
    assert distance([np.mean(found, 0)], [expected]) < 1e-3


def test_images_of_unknown_size_with_a_sigmoid_train_as_keras():
    x, y = normal(4, 6, 6, 2), normal(4, 6, 6, 1)
    signature = (
        tf.TensorSpec((None, None, None, 2)),
        tf.TensorSpec((None, None, None, 1)),
    )
    data = tf.data.Dataset.from_generator(
        lambda: iter([(x, y)]), output_signature=signature
    ).repeat()

    def step(**mode):
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [
                keras.Input((None, None, 2)),
                L.Conv2D(3, 3, padding="same"),
                L.Conv2D(1, 1, activation="sigmoid"),
            ]
        )
        model = kpg.PerGradModel.from_model(model) if mode else model
        model.compile(keras.optimizers.SGD(0.1), "mse", **mode)
        start = [np.asarray(w) for w in model.weights]
        model.fit(data, verbose=0, shuffle=False, steps_per_epoch=1)
        return [np.asarray(w) - s for w, s in zip(model.weights, start)]

    assert distance(step(gradient_mode="vectorized"), step()) < 1e-3


@pytest.mark.slow
# keras_hub's layers drop masks, and say so.
@pytest.mark.filterwarnings("ignore:Layer:UserWarning")
def test_position_bias_of_t5():
    models = pytest.importorskip("keras_hub").models
    ids = np.random.default_rng(0).integers(1, 20, (4, 6))
    mask = np.ones((4, 6), "int32")
    t5 = models.T5Backbone(20, 2, 2, 8, 16)
    x = {
        "encoder_token_ids": ids,
        "encoder_padding_mask": mask,
        "decoder_token_ids": ids,
        "decoder_padding_mask": mask,
    }
    out = t5.output["decoder_sequence_output"]
    model = keras.Model(t5.input, L.Dense(3)(out))
    model.compile("sgd", "mse")
    y = normal(4, 6, 3)
    found = kpg.per_sample_gradients(model, x, y, training=False)
    with tf.GradientTape() as tape:
        loss = model.compute_loss(x, y, model(x, training=False))
    variables = model.trainable_variables
    gradients = tape.gradient(loss, [v.value for v in variables])
    for variable, ours, keras_own in zip(variables, found, gradients):
        if keras_own is None:
            continue
        keras_own = np.asarray(tf.convert_to_tensor(keras_own))
        if np.abs(keras_own).max() > 1e-6:
            apart = distance([np.mean(ours, 0)], [keras_own])
            assert apart < 1e-2, variable.path


# --- Samples that meet are refused ----------------------------------------


class MeanOverBatch(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = L.Dense(3)

    def call(self, x):
        return ops.mean(self.dense(x), 0)


def orthogonal_activities():
    penalty = keras.regularizers.OrthogonalRegularizer(0.5)
    model = keras.Sequential(
        [keras.Input((5,)), L.Dense(3, activity_regularizer=penalty)]
    )
    model.compile("sgd", "mse")
    return model


def mean_over_batch():
    model = MeanOverBatch()
    model(normal(5, 5))
    model.compile("sgd", lambda a, b: ops.mean((ops.mean(a, 0) - b) ** 2))
    return model


def loss_over_axis_0(loss):
    model = keras.Sequential(
        [keras.Input((5,)), L.Dense(3, activation="softmax")]
    )
    model.compile("sgd", loss)
    return model


COUPLED = {
    "orthogonal activities": orthogonal_activities,
    "output without batch axis": mean_over_batch,
    "CosineSimilarity": lambda: loss_over_axis_0(
        keras.losses.CosineSimilarity(axis=0)
    ),
    "CategoricalCrossentropy": lambda: loss_over_axis_0(
        keras.losses.CategoricalCrossentropy(axis=0)
    ),
    "CategoricalFocalCrossentropy": lambda: loss_over_axis_0(
        keras.losses.CategoricalFocalCrossentropy(axis=0)
    ),
}


@pytest.mark.parametrize("make", COUPLED.values(), ids=COUPLED)
def test_samples_do_not_change_each_others_gradients(make):
    model, x = make(), normal(5, 5)
    y = np.eye(3, dtype="float32")[[0, 2, 1, 1, 0]]
    other = np.concatenate([x[:1], 0.3 * x[1:] + 1])
    try:
        first, second = (
            np.asarray(kpg.per_sample_gradients(model, batch, y)[0])[0]
            for batch in (x, other)
        )
    except REFUSALS:
        return
    assert distance([first], [second]) < 1e-4


class Positions(L.Layer):
    """Adds learned positions, looked up in a table."""

    def build(self, shape):
        self.table = L.Embedding(6, 5)
        self.table.build()

    def call(self, x):
        return x + self.table(ops.arange(6))[None]


class WantsLargeNumbers(L.Layer):
    """Fails on numbers that are made up."""

    def call(self, x):
        tf.debugging.assert_greater(tf.reduce_max(x), 1.0)
        return x


def test_as_many_positions_as_samples_where_nothing_can_be_tried():
    inputs = keras.Input((6, 5))
    h = Positions()(WantsLargeNumbers()(inputs))
    h = L.Flatten()(L.Dense(3, activation="tanh")(h))
    model = keras.Model(inputs, L.Dense(3)(h))
    model.compile("sgd", "mse")
    x, y = normal(6, 6, 5), normal(6, 3)
    x[:, 0, 0] = 5
    expected = kpg.per_sample_norms(model, x, y, method="per_sample")
    try:
        found = kpg.per_sample_norms(model, x, y)
    except REFUSALS:
        return
    assert distance([found], [expected]) < 1e-3


def test_input_gradients_do_not_depend_on_the_batch_size():
    model = keras.Sequential(
        [
            keras.Input((5,)),
            L.Dense(4, activation="tanh"),
            L.Lambda(lambda x: x - ops.mean(x, 0, keepdims=True)),
            L.Dense(3, activation="tanh"),
        ]
    )
    try:
        whole, pairs = (
            kpg.input_gradients(
                model, normal(6, 5), outputs=0, verbose=0, batch_size=k
            )
            for k in (6, 2)
        )
    except REFUSALS:
        return
    assert distance([whole], [pairs]) < 1e-3


# --- State -----------------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [kpg.per_sample_gradients, kpg.per_sample_norms, kpg.gradient_statistics],
)
def test_looking_at_gradients_changes_no_weight(function):
    dense = L.SpectralNormalization(L.Dense(4))
    model = keras.Sequential([keras.Input((5,)), dense, L.Dense(3)])
    model.compile("sgd", "mse")
    before = [np.array(w) for w in model.weights]
    try:
        function(model, normal(12, 5), normal(12, 3))
    except REFUSALS:
        return
    for variable, value in zip(model.weights, before):
        np.testing.assert_array_equal(variable, value, err_msg=variable.path)


def test_gradient_variance_leaves_training_as_it_is():
    x, y = normal(12, 5), normal(12, 3)

    def weights(callbacks):
        keras.utils.set_random_seed(3)
        dense = L.SpectralNormalization(L.Dense(4))
        model = keras.Sequential([keras.Input((5,)), dense, L.Dense(3)])
        model.compile(keras.optimizers.Adam(0.01), "mse")
        how = {"batch_size": 4, "epochs": 2, "verbose": 0}
        model.fit(x, y, callbacks=callbacks, **how)
        return [np.asarray(w) for w in model.weights]

    probe = x[:6], y[:6]
    watched = kpg.callbacks.GradientVariance(probe=probe, every=1)
    for ours, plain in zip(weights([watched]), weights([])):
        np.testing.assert_array_equal(ours, plain)


class Counts(L.Layer):
    """Counts its calls in a variable that Keras does not know."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],))
        self.calls = tf.Variable(0.0, trainable=False)

    def call(self, x, training=None):
        if training:
            self.calls.assign_add(1.0)
        return x * self.scale


@pytest.mark.parametrize(
    "mode", ["batch", "vectorized", "per_sample", "accumulated"]
)
def test_a_layers_own_counter_counts_steps(mode):
    counts = Counts()
    model = kpg.PerGradModel.from_model(functional(counts))
    model.compile("sgd", "mse", gradient_mode=mode)
    try:
        model.fit(np.ones((6, 5)), np.ones((6, 3)), verbose=0)
    except REFUSALS:
        return
    assert float(counts.calls) == 1


def test_models_with_one_clipped_mean_have_noise_of_their_own(tmp_path):
    shared = kpg.ClippedMean(1.0, noise_multiplier=1.0, seed=3)
    path = str(tmp_path / "first.weights.h5")

    def made():
        inputs = keras.Input((5,))
        dense = L.Dense(100, kernel_initializer="zeros", use_bias=False)
        model = kpg.PerGradModel(inputs, dense(inputs))
        mode = kpg.Vectorized(shared)
        model.compile(keras.optimizers.SGD(1.0), "mse", gradient_mode=mode)
        return model

    def noise(model):
        start = np.array(model.trainable_variables[0])
        model.fit(np.zeros((4, 5)), np.zeros((4, 100)), verbose=0)
        return (np.array(model.trainable_variables[0]) - start).ravel()

    first, second = made(), made()
    noise(first)
    first.save_weights(path)
    before = noise(second)
    first.load_weights(path)
    assert np.corrcoef(before, noise(second))[0, 1] < 0.9


# --- Served, not refused ---------------------------------------------------


class SingleInside(L.Layer):
    """A norm computed in float32, whatever the model's type is."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x):
        h = ops.cast(x, "float32")
        h = h * ops.rsqrt(ops.mean(h**2, -1, keepdims=True) + 1e-6)
        return ops.cast(h, self.compute_dtype) * self.scale


@pytest.mark.parametrize("method", ["vectorized", "per_sample"])
@pytest.mark.usefixtures("float64")
def test_float32_inside_of_float64_does_not_count_as_mixing(method):
    inputs = keras.Input((6, 8))
    h = L.Dense(16, activation="gelu")(inputs)
    h = SingleInside()(L.MultiHeadAttention(2, 8)(h, h))
    model = keras.Model(inputs, L.Dense(3)(SingleInside()(L.Dense(64)(h))))
    model.compile("sgd", "mse")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(4, 6, 8)), rng.normal(size=(4, 6, 3))
    found = kpg.per_sample_gradients(model, x, y, method=method)
    bias = model.trainable_variables[-1]
    expected = ordinary_gradient(model, x, y, bias)
    assert distance([np.mean(found[-1], 0)], [expected]) < 1e-3


@pytest.mark.parametrize(
    "mode", ["batch", "vectorized", "per_sample", "accumulated"]
)
@pytest.mark.usefixtures("float64")
def test_loss_scaling_with_float64(mode):
    def weights(**arguments):
        keras.utils.set_random_seed(1)
        inputs = keras.Input((5,))
        model = keras.Model(inputs, L.Dense(3)(inputs))
        if arguments:
            model = kpg.PerGradModel.from_model(model)
        optimizer = keras.optimizers.SGD(0.1)
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        model.compile(optimizer, "mse", **arguments)
        model.fit(np.ones((4, 5)), np.ones((4, 3)), verbose=0)
        return [np.asarray(w) for w in model.trainable_variables]

    assert distance(weights(gradient_mode=mode), weights()) < 1e-6


class InALoop(L.Layer):
    """Uses its weight inside a `tf.map_fn`, or what is given in its place."""

    def __init__(self, over=tf.map_fn):
        super().__init__()
        self.over = over

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], shape[-1]))

    def call(self, x):
        kernel = self.kernel.value
        return self.over(lambda row: tf.tanh(tf.linalg.matvec(kernel, row)), x)


@pytest.mark.parametrize(
    "over",
    [tf.map_fn, keras.ops.map, tf.vectorized_map],
    ids=["map_fn", "ops_map", "vectorized_map"],
)
def test_a_weight_in_a_loop_behind_another_layer(over):
    x, y = normal(4, 5), normal(4, 3)
    loop = InALoop(over)
    model = functional(L.Dense(5), loop)
    model.compile("sgd", "mse")
    found = kpg.per_sample_gradients(model, x, y)[2]
    expected = ordinary_gradient(model, x, y, loop.kernel)
    assert distance([np.mean(found, 0)], [expected]) < 1e-3


RECURRENT = {
    "Embedding, LSTM with dropout": (
        lambda: [
            keras.Input((6,), dtype="int32"),
            L.Embedding(9, 4),
            L.LSTM(3, dropout=0.2),
        ],
        np.random.default_rng(0).integers(0, 9, (5, 6)),
    ),
    "Dense, stacked cells": (
        lambda: [
            keras.Input((6, 5)),
            L.Dense(4),
            L.RNN([L.LSTMCell(3), L.GRUCell(3)]),
        ],
        normal(5, 6, 5),
    ),
    "Dense, ConvLSTM1D": (
        lambda: [
            keras.Input((6, 5)),
            L.Dense(4),
            L.Reshape((6, 4, 1)),
            L.ConvLSTM1D(2, 2),
            L.Flatten(),
            L.Dense(3),
        ],
        normal(5, 6, 5),
    ),
}


@pytest.mark.parametrize(("layers", "x"), RECURRENT.values(), ids=RECURRENT)
def test_recurrent_layers_behind_weights_train_as_keras(layers, x):
    def make():
        return keras.Sequential(layers())

    y = normal(5, 3)
    found = trained(make, x, y, mode="vectorized")
    assert distance(found, trained(make, x, y)) < 1e-3


# --- Said well --------------------------------------------------------------


def refusal(model, x, y):
    """What `fit` says against a batch, or None where it trains on it."""
    start = np.array(model.trainable_variables[0])
    try:
        model.fit(x, y, batch_size=len(y), verbose=0)
    except ValueError as error:
        return str(error)
    assert distance([model.trainable_variables[0]], [start]) > 0
    return None


def test_sparse_inputs_are_served_or_refused_with_accumulation():
    sparse = pytest.importorskip("scipy.sparse")
    model = keras.Sequential([keras.Input((5,), sparse=True), L.Dense(3)])
    model = kpg.PerGradModel.from_model(model)
    mode = kpg.Accumulated(microbatch_size=3)
    model.compile("sgd", "mse", gradient_mode=mode)
    said = refusal(model, sparse.csr_matrix(np.eye(8, 5)), np.ones((8, 3)))
    assert said is None or "sparse" in said


def test_stateful_rnn_one_sample_at_a_time_is_served_or_refused_in_words():
    inputs = keras.Input(batch_shape=(4, 5, 2))
    out = L.Dense(1)(L.LSTM(3, stateful=True)(inputs))
    model = kpg.PerGradModel(inputs, out)
    model.compile("sgd", "mse", gradient_mode="per_sample")
    said = refusal(model, normal(4, 5, 2), normal(4, 1))
    assert said is None or "gradient_mode" in said


class RandomFourierFeatures(L.Layer):
    """keras.io's quasi-SVM, with a trainable scale of its kernel."""

    def build(self, shape):
        self.kernel = self.add_weight(
            shape=(shape[-1], 64),
            initializer=keras.initializers.RandomNormal(stddev=1.0),
            trainable=False,
        )
        self.bias = self.add_weight(
            shape=(64,),
            initializer=keras.initializers.RandomUniform(0.0, 2 * np.pi),
            trainable=False,
        )
        self.kernel_scale = self.add_weight(
            shape=(1,),
            initializer=keras.initializers.Constant(10.0),
            constraint="non_neg",
        )

    def call(self, x):
        kernel = (1.0 / self.kernel_scale) * self.kernel
        return ops.cos(ops.matmul(x, kernel) + self.bias)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("method", ["vectorized", "per_sample"])
def test_trained_scale_of_a_random_kernel(method):
    """In float32 its gradient cancels, so rounding shows; not in float64."""
    model = functional(RandomFourierFeatures(), size=20)
    model.compile("sgd", "hinge")
    x, y = normal(8, 20).astype("float64"), np.eye(3)[np.arange(8) % 3]
    found = kpg.per_sample_gradients(model, x, y, method=method)[0]
    scale = model.trainable_variables[0]
    for k in range(8):
        rows = slice(k, k + 1)
        expected = ordinary_gradient(model, x[rows], y[rows], scale)
        np.testing.assert_allclose(found[k], expected, rtol=1e-11, atol=1e-13)
