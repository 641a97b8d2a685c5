"""Defects that users met: wrong answers, lost state, needless refusals."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers as L
from keras import ops

import keras_pergrad as kpg
from tests import oracle
from tests.models.making import (
    compiled,
    integers,
    net,
    normal,
    trained,
    unchanged,
)
from tests.proof.mixing_cases import AddLoss, Apply

IN_TWOS = kpg.Accumulated(microbatch_size=2)


def distance(found, expected):
    """The largest difference over lists of arrays, in parts of the arrays."""
    return max(
        float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-9))
        for a, b in zip(map(np.asarray, found), map(np.asarray, expected))
    )


def fitted(make, x, y, *, mode=None, epochs=1, rate=0.1):
    """The weights after training with a mode, or with plain Keras."""
    keras.utils.set_random_seed(1)
    model = compiled(make(), mode, rate=rate)
    trained(model, x, y, epochs=epochs, batch_size=len(y))
    return [np.asarray(w) for w in model.weights]


def by_mode(table):
    """The names of a table, each with the modes in its row."""
    return [
        pytest.param(name, mode, id=f"{name}, {mode}")
        for name, (_, modes, *_) in table.items()
        for mode in modes
    ]


# --- Training goes as with keras.Model -----------------------------------


class LossBehindOwnWeight(L.Layer):
    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")
        self.inner = L.Dense(4, activity_regularizer=keras.regularizers.L2(1.0))
        self.inner.build(shape)
        self.outer = L.Dense(3)
        self.outer.build((None, 4))

    def call(self, x):
        return self.outer(self.inner(x * self.scale))


class WithKernel(L.Layer):
    """A function of a kernel and the inputs."""

    def __init__(self, function, units=4):
        super().__init__()
        self.function, self.units = function, units

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], self.units))

    def call(self, x):
        return self.function(self.kernel, x)


class AssignsItsKernel(WithKernel):
    def call(self, x, training=None):
        if training:
            self.kernel.assign(ops.sign(self.kernel) * 0.3)
        return super().call(x)


def product(kernel, x):
    return ops.matmul(x, kernel)


def same_twice(kernel, x):
    h = product(kernel, x)
    return h, h


def with_its_square(kernel, x):
    h = ops.tanh(product(kernel, x))
    return h, ops.sum(h**2, -1, keepdims=True)


@tf.custom_gradient
def clipped_backward(x):
    """The identity, whose gradient is clipped by the norm of the batch's."""
    return tf.identity(x), lambda dy: tf.clip_by_norm(dy, 0.05)


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

    class Near(keras.regularizers.Regularizer):
        def __call__(self, kernel):
            return 0.5 * ops.sum((kernel - first.kernel) ** 2)

    second = L.Dense(4, kernel_regularizer=Near())
    h = L.Add()([first(inputs), second(inputs)])
    return keras.Model(inputs, L.Dense(3)(h))


def standardised_on_the_instance():
    convolution = L.Conv2D(3, 3)
    plain = convolution.convolution_op

    def standardised(x, kernel):
        kernel = (kernel - ops.mean(kernel)) / (ops.std(kernel) + 1e-3)
        return plain(x, kernel)

    convolution.convolution_op = standardised
    return net(convolution, L.Flatten(), shape=(8, 8, 2))


def spectrally_normalised():
    return net(L.SpectralNormalization(L.Dense(4), power_iterations=20))


def assigns_its_kernel():
    return net(AssignsItsKernel(product))


@tf.RegisterGradient("KerasPergradTenth")
def tenth(op, gradient):
    del op
    return gradient * 0.1


def overridden(x):
    """The identity, whose gradient no tape takes as this one's."""
    graph = tf.compat.v1.get_default_graph()
    with graph.gradient_override_map({"Identity": "KerasPergradTenth"}):
        return tf.identity(x)


@tf.RegisterGradient("KerasPergradSign")
def by_signs(op, gradient):
    x, gain = op.inputs
    return gradient * gain, tf.reduce_sum(tf.sign(gradient) * x, 0)


@tf.function
def scaled_with_signs(gain, x):
    graph = tf.compat.v1.get_default_graph()
    with graph.gradient_override_map({"Mul": "KerasPergradSign"}):
        return tf.multiply(x, gain)


def many_hot(layer):
    """A model in which a layer counts whole numbers from 0 to 2."""
    return net(Apply(lambda x: ops.cast(ops.abs(x) % 3, "int32")), layer)


#: Models, the modes that train them, arguments of `fitted`.
TRAINS = {
    "gradient_override_map": (
        lambda: net(L.Dense(4), Apply(overridden)),
        ["vectorized", "per_sample"],
        {},
    ),
    "gradient_override_map in a function, which a tape heeds": (
        lambda: net(L.Dense(4), Apply(tf.function(overridden))),
        ["vectorized"],
        {},
    ),
    "IntegerLookup, multi_hot": (
        lambda: many_hot(
            L.IntegerLookup(vocabulary=[1, 2], output_mode="multi_hot")
        ),
        ["vectorized"],
        {},
    ),
    "Hashing, count": (
        lambda: many_hot(L.Hashing(4, output_mode="count")),
        ["vectorized"],
        {},
    ),
    "Discretization, multi_hot": (
        lambda: net(L.Discretization([-0.5, 0.5], output_mode="multi_hot")),
        ["vectorized", "per_sample"],
        {},
    ),
    "loss behind a layer's own weight": (
        lambda: net(LossBehindOwnWeight(), units=None),
        ["vectorized", "per_sample"],
        {"rate": 0.01},
    ),
    "weight assigned in call": (assigns_its_kernel, ["vectorized"], {}),
    "the same output twice": (
        lambda: joined(WithKernel(same_twice)),
        ["vectorized", "per_sample"],
        {},
    ),
    "an output and its square": (
        lambda: joined(WithKernel(with_its_square), L.Dense(4)),
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
        lambda: net(L.Dense(4), AnnealedLoss()),
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
        ["vectorized"],
        {"epochs": 3},
    ),
    # A sum over the samples, which is zero where all inputs are.
    "added sum of value zero": (
        lambda: net(
            L.Dense(4, kernel_initializer="zeros"),
            AddLoss(lambda x: 0.1 * ops.sum(x)),
        ),
        ["vectorized", "per_sample", IN_TWOS],
        {},
    ),
    "Embedding, LSTM with dropout": (
        lambda: net(
            L.Embedding(9, 4),
            L.LSTM(3, dropout=0.2),
            shape=(6,),
            dtype="int32",
            units=None,
        ),
        ["vectorized"],
        {"x": integers(9, 6, 6)},
    ),
    "Dense, stacked cells": (
        lambda: net(
            L.Dense(4),
            L.RNN([L.LSTMCell(3), L.GRUCell(3)]),
            shape=(6, 5),
            units=None,
        ),
        ["vectorized"],
        {"x": normal(6, 6, 5)},
    ),
    "Dense, ConvLSTM1D": (
        lambda: net(
            L.Dense(4),
            L.Reshape((6, 4, 1)),
            L.ConvLSTM1D(2, 2),
            L.Flatten(),
            shape=(6, 5),
        ),
        ["vectorized"],
        {"x": normal(6, 6, 5)},
    ),
}


@pytest.mark.parametrize(("name", "mode"), by_mode(TRAINS))
def test_trains_as_keras(name, mode):
    make, _, arguments = TRAINS[name]
    arguments = {"x": normal(6, 5), "y": normal(6, 3), **arguments}
    expected = fitted(make, **arguments)
    assert distance(fitted(make, mode=mode, **arguments), expected) < 1e-3


def test_images_of_unknown_size_with_a_sigmoid_train_as_keras():
    x, y = normal(4, 6, 6, 2), normal(4, 6, 6, 1)
    sizes = [None, None, None]
    signature = tf.TensorSpec([*sizes, 2]), tf.TensorSpec([*sizes, 1])
    data = tf.data.Dataset.from_generator(
        lambda: iter([(x, y)]), output_signature=signature
    ).repeat()

    def step(mode=None):
        keras.utils.set_random_seed(0)
        model = net(
            L.Conv2D(3, 3, padding="same"),
            L.Conv2D(1, 1, activation="sigmoid"),
            shape=(None, None, 2),
            units=None,
        )
        model = compiled(model, mode)
        start = model.get_weights()
        trained(model, data, steps_per_epoch=1)
        return [w - s for w, s in zip(model.get_weights(), start)]

    assert distance(step("vectorized"), step()) < 1e-3


# --- Gradients are those of single samples -------------------------------


def gate(kernel, x):
    return ops.sigmoid(product(kernel, x))


def gives_its_scores(h):
    attention = L.Attention(use_scale=True)
    return attention([h, h], return_attention_scores=True)[0]


def in_a_loop(over):
    """The kernel inside a `tf.map_fn`, or what is given in its place."""

    def mapped(kernel, x):
        variable = kernel.value
        return over(lambda row: tf.tanh(tf.linalg.matvec(variable, row)), x)

    return lambda: [L.Dense(5), WithKernel(mapped, 5)]


BOTH = ["vectorized", "per_sample"]
#: Weights behind others: parts of models, the shape of a sample, methods.
COUNTED_ONCE = {
    "an own sigmoid": (lambda: [L.Dense(4), WithKernel(gate)], (5,), BOTH),
    "attention that gives its scores": (
        lambda: [L.Dense(4), gives_its_scores, L.Flatten()],
        (6, 5),
        ["vectorized"],
    ),
    "map_fn": (in_a_loop(tf.map_fn), (5,), ["vectorized"]),
    "ops.map": (in_a_loop(ops.map), (5,), ["vectorized"]),
    "vectorized_map": (in_a_loop(tf.vectorized_map), (5,), ["vectorized"]),
}


@pytest.mark.parametrize("name", COUNTED_ONCE)
@pytest.mark.usefixtures("float64")
def test_gradients_behind_weights_are_counted_once(name):
    parts, shape, methods = COUNTED_ONCE[name]
    model = compiled(net(*parts(), shape=shape))
    x, y = normal(5, *shape), normal(5, 3)
    for method in methods:
        found = kpg.per_sample_gradients(model, x, y, method=method)
        oracle.check(found, model, x, y=y)


class SingleInside(L.Layer):
    """A norm computed in float32, whatever the model's type is."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x):
        h = ops.cast(x, "float32")
        h = h * ops.rsqrt(ops.mean(h**2, -1, keepdims=True) + 1e-6)
        return ops.cast(h, self.compute_dtype) * self.scale


@pytest.mark.parametrize("method", BOTH)
@pytest.mark.usefixtures("float64")
def test_float32_inside_of_float64_does_not_count_as_mixing(method):
    def attends(h):
        return L.MultiHeadAttention(2, 8)(h, h)

    first = L.Dense(16, "gelu"), attends, SingleInside()
    model = compiled(net(*first, L.Dense(64), SingleInside(), shape=(6, 8)))
    x, y = normal(4, 6, 8), normal(4, 6, 3)
    found = kpg.per_sample_gradients(model, x, y, method=method)[-1]
    expected = oracle.batch_gradient(model, x, y, training=True)[-1]
    assert distance([np.mean(found, 0)], [expected]) < 1e-3


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
@pytest.mark.parametrize("method", BOTH)
def test_trained_scale_of_a_random_kernel(method):
    """In float32 its gradient cancels, so rounding shows; not in float64."""
    parts = RandomFourierFeatures()
    model = compiled(net(parts, shape=(20,)), loss="hinge")
    x, y = normal(8, 20), np.eye(3)[np.arange(8) % 3]
    found = kpg.per_sample_gradients(model, x, y, method=method)[0]
    expected = oracle.per_sample_gradients(model, x, y, training=True)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-13)


@pytest.mark.slow
# keras_hub's layers drop masks, and say so.
@pytest.mark.filterwarnings("ignore:Layer:UserWarning")
def test_position_bias_of_t5():
    models = pytest.importorskip("keras_hub").models
    t5 = models.T5Backbone(20, 2, 2, 8, 16)
    ids, mask = 1 + integers(19, 4, 6), np.ones((4, 6), "int32")
    x = {}
    for part in ("encoder", "decoder"):
        x |= {f"{part}_token_ids": ids, f"{part}_padding_mask": mask}
    out = L.Dense(3)(t5.output["decoder_sequence_output"])
    model, y = compiled(keras.Model(t5.input, out)), normal(4, 6, 3)
    found = kpg.per_sample_gradients(model, x, y, training=False)
    expected = oracle.batch_gradient(model, x, y)
    variables = model.trainable_variables
    for variable, ours, right in zip(variables, found, expected):
        if right is not None and np.abs(right).max() > 1e-6:
            apart = distance([np.mean(ours, 0)], [right])
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
    return compiled(net(L.Dense(3, activity_regularizer=penalty), units=None))


def mean_over_batch():
    model = MeanOverBatch()
    model(normal(5, 5))
    return compiled(
        model, loss=lambda a, b: ops.mean((ops.mean(a, 0) - b) ** 2)
    )


def loss_over_axis_0(loss):
    softmax = L.Dense(3, activation="softmax")
    return lambda: compiled(net(softmax, units=None), loss=loss(axis=0))


MEETING = r"(mixes|compares) the samples"
COUPLED = {
    "orthogonal activities": orthogonal_activities,
    "output without batch axis": mean_over_batch,
    **{
        loss.__name__: loss_over_axis_0(loss)
        for loss in (
            keras.losses.CosineSimilarity,
            keras.losses.CategoricalCrossentropy,
            keras.losses.CategoricalFocalCrossentropy,
        )
    },
}


@pytest.mark.parametrize("make", COUPLED.values(), ids=COUPLED)
def test_samples_that_meet_are_refused(make):
    y = np.eye(3, dtype="float32")[[0, 2, 1, 1, 0]]
    with pytest.raises(ValueError, match=MEETING):
        kpg.per_sample_gradients(make(), normal(5, 5), y)


class Positions(L.Layer):
    """Adds learned positions, looked up in a table."""

    def build(self, shape):
        self.table = L.Embedding(6, 5)
        self.table.build()

    def call(self, x):
        return x + self.table(ops.arange(6))[None]


def wants_large_numbers(x):
    """Fails on numbers that are made up."""
    tf.debugging.assert_greater(tf.reduce_max(x), 1.0)
    return x


def test_as_many_positions_as_samples_where_nothing_can_be_tried():
    parts = (
        Apply(wants_large_numbers),
        Positions(),
        L.Dense(3, "tanh"),
        L.Flatten(),
    )
    model = compiled(net(*parts, shape=(6, 5)))
    x, y = normal(6, 6, 5), normal(6, 3)
    x[:, 0, 0] = 5
    expected = kpg.per_sample_norms(model, x, y, method="per_sample")
    found = kpg.per_sample_norms(model, x, y)
    assert distance([found], [expected]) < 1e-3


@pytest.mark.parametrize("size", [6, 2])
def test_gradients_of_mixed_inputs_are_refused(size):
    centred = L.Lambda(lambda x: x - ops.mean(x, 0, keepdims=True))
    model = net(L.Dense(4, "tanh"), centred, L.Dense(3, "tanh"), units=None)
    with pytest.raises(ValueError, match="mixes the samples"):
        kpg.input_gradients(
            model, normal(6, 5), outputs=0, batch_size=size, verbose=0
        )


# --- State -----------------------------------------------------------------


class Counts(L.Layer):
    """Counts its calls in a variable that Keras does not know."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],))
        self.calls = tf.Variable(0.0, trainable=False)

    def call(self, x, training=None):
        if training:
            self.calls.assign_add(1.0)
        return x * self.scale


@pytest.mark.parametrize("mode", ["batch", "vectorized"])
def test_a_layers_own_counter_counts_steps(mode):
    counts = Counts()
    trained(compiled(net(counts), mode), np.ones((6, 5)), np.ones((6, 3)))
    assert float(counts.calls) == 1


def test_models_with_one_clipped_mean_have_noise_of_their_own(tmp_path):
    shared = kpg.ClippedMean(1.0, noise_multiplier=1.0, seed=3)
    path = str(tmp_path / "first.weights.h5")

    def made():
        dense = L.Dense(100, kernel_initializer="zeros", use_bias=False)
        model = net(dense, units=None)
        return compiled(model, kpg.Vectorized(shared), rate=1.0)

    def noise(model):
        start = np.array(model.trainable_variables[0])
        trained(model, np.zeros((4, 5)), np.zeros((4, 100)))
        return (np.array(model.trainable_variables[0]) - start).ravel()

    first, second = made(), made()
    noise(first)
    first.save_weights(path)
    before = noise(second)
    first.load_weights(path)
    assert np.corrcoef(before, noise(second))[0, 1] < 0.9


def sparse_inputs():
    return keras.Sequential([keras.Input((5,), sparse=True), L.Dense(3)])


def stateful_rnn():
    inputs = keras.Input(batch_shape=(6, 5, 2))
    return keras.Model(inputs, L.Dense(3)(L.LSTM(3, stateful=True)(inputs)))


ONE_BY_ONE = ["per_sample", IN_TWOS]
#: Models, modes that refuse them, what these say, inputs.
REFUSED = {
    "sparse inputs": (
        sparse_inputs,
        [IN_TWOS],
        "dense tensors only. Received: a SparseTensor",
        lambda: pytest.importorskip("scipy.sparse").csr_matrix(np.eye(6, 5)),
    ),
    "a recurrent layer with a state": (
        stateful_rnn,
        ["per_sample"],
        "gradient_mode='per_sample' calls it with one sample",
        lambda: normal(6, 5, 2),
    ),
    "weight assigned in call": (
        assigns_its_kernel,
        ONE_BY_ONE,
        "assigns the trainable variables",
        None,
    ),
    "spectral normalisation": (
        spectrally_normalised,
        ONE_BY_ONE,
        "assigns the trainable variables",
        None,
    ),
    "custom gradient over the batch": (
        lambda: net(L.Dense(4), Apply(clipped_backward)),
        ONE_BY_ONE,
        "mixes the samples",
        None,
    ),
    "gradient_override_map that is not linear": (
        lambda: net(WithKernel(lambda k, x: scaled_with_signs(k[:, 0], x))),
        ["vectorized"],
        "not linear",
        None,
    ),
    "a layer's own counter": (
        lambda: net(Counts()),
        ONE_BY_ONE,
        "assigns a tf.Variable that Keras does not know",
        None,
    ),
}


@pytest.mark.parametrize(("name", "mode"), by_mode(REFUSED))
def test_what_is_not_served_is_refused_in_words(name, mode):
    make, _, message, inputs = REFUSED[name]
    model = compiled(make(), mode)
    x = inputs() if inputs else normal(6, 5)
    with unchanged(model), pytest.raises(ValueError, match=message):
        trained(model, x, normal(6, 3), batch_size=6)


def test_under_xla_overridden_gradients_are_refused():
    model = net(L.Dense(4), Apply(overridden))
    model = compiled(model, "vectorized", jit_compile=True)
    with unchanged(model), pytest.raises(ValueError, match="jit_compile=False"):
        trained(model, normal(6, 5), normal(6, 3), batch_size=6)
