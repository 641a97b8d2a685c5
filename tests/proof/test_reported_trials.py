"""Models that a trial of a few samples judged wrongly."""

import gc
import threading
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests import oracle, zoo
from tests.models.making import compiled, integers, net, normal, trained
from tests.proof.mixing_cases import Apply, Weighed

layers, ops = keras.layers, keras.ops
X, Y = normal(8, 5), normal(8, 3, seed=1)


# Sound models that were refused.
class GradientPenalty(layers.Layer):
    def __init__(self):
        super().__init__()
        self.net = keras.Sequential(
            [layers.Input((5,)), layers.Dense(6, "tanh"), layers.Dense(2)]
        )

    def call(self, x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            out = self.net(x)
        norm = ops.norm(tape.gradient(out, x), axis=1, keepdims=True)
        return ops.mean(out**2, 1, keepdims=True) + (norm - 1.0) ** 2


class Folded(layers.Layer):
    """An LSTM over nodes that are folded with the samples."""

    def __init__(self, nodes_first):
        super().__init__()
        self.nodes_first = nodes_first
        self.lstm, self.dense = layers.LSTM(4), layers.Dense(3)

    def build(self, shape):
        self.lstm.build((None, 6, 2))
        self.dense.build((None, 4))

    def call(self, x):
        first, n = self.nodes_first, ops.shape(x)[0]
        x = ops.transpose(x, (2, 0, 1, 3) if first else (0, 2, 1, 3))
        x = self.dense(self.lstm(ops.reshape(x, (5 * n, 6, 2))))
        x = ops.reshape(x, (5, n, 3) if first else (n, 5, 3))
        return ops.transpose(x, (1, 2, 0) if first else (0, 2, 1))

    def compute_output_shape(self, shape):
        return shape[0], 3, 5


def _experts(x, w):
    """The sum of experts, all of which begin at zero."""
    size = ops.shape(x)
    x = ops.reshape(x, (-1, size[-1]))
    x = ops.sum(ops.einsum("th,ehi->eti", x, w), 0)
    return ops.reshape(x, (size[0], size[1], 5))


def _zeros(size):
    return layers.Dense(size, kernel_initializer="zeros")


def _transposed(*order):
    return layers.Lambda(lambda x: ops.transpose(x, order))


#: Layers, the shapes of a sample and of its target.
SOUND = {
    "gradient penalty": (lambda: [GradientPenalty()], (5,), (1,)),
    "samples on a middle axis": (
        lambda: [
            _transposed(2, 0, 1, 3),
            layers.Dense(3),
            _transposed(1, 2, 0, 3),
            layers.Dense(1),
        ],
        (6, 5, 2),
        (6, 5, 1),
    ),
    "nodes first": (lambda: [Folded(True)], (6, 5, 2), (3, 5)),
    "samples first": (lambda: [Folded(False)], (6, 5, 2), (3, 5)),
    "experts": (
        lambda: _behind_zeros(Weighed(_experts, (3, 4, 5), "zeros")),
        (6, 4),
        (3,),
    ),
    "dense": (lambda: _behind_zeros(_zeros(8), layers.Dense(4)), (6, 4), (3,)),
    "top_k": (
        lambda: _behind_zeros(
            _zeros(8),
            layers.Lambda(lambda x: ops.top_k(ops.softmax(x), 4)[0]),
            layers.Dense(5),
        ),
        (6, 4),
        (3,),
    ),
    "convolution": (
        lambda: _behind_zeros(_zeros(8), layers.Conv1D(4, 3)),
        (6, 4),
        (3,),
    ),
}


def _behind_zeros(*parts):
    return [*parts, layers.GlobalAveragePooling1D(), layers.Dense(3)]


@pytest.mark.parametrize(
    ("name", "method"),
    [("gradient penalty", "per_sample"), *((n, "vectorized") for n in SOUND)],
)
@pytest.mark.usefixtures("float64")
def test_sound_models_are_exact(name, method):
    parts, of_x, of_y = SOUND[name]
    loss = "mae" if name == "gradient penalty" else "mse"
    model = compiled(net(*parts(), shape=of_x, units=None), loss=loss)
    x, y = normal(4, *of_x), normal(4, *of_y, seed=1)
    found = kpg.per_sample_gradients(model, x, y, method=method)
    oracle.check(found, model, x, y=y)


def test_vocabulary_without_room_for_others():
    words = ["cat", "dog", "cow", "pig"]
    model = net(
        layers.StringLookup(vocabulary=words, num_oov_indices=0),
        layers.Embedding(4, 4),
        layers.Flatten(),
        shape=(1,),
        dtype="string",
    )
    data = tf.data.Dataset.from_tensor_slices(([[w] for w in words * 2], Y))
    trained(compiled(model, "vectorized"), data.batch(8))


@pytest.mark.parametrize(
    "what", ["norms", "vectorized", kpg.Accumulated(microbatch_size=4)]
)
def test_global_seed_first_used_in_the_step(what):
    class Noisy(layers.Layer):
        def call(self, x, training=False):
            # Not before the step: a functional model is made untrained.
            return x + keras.random.normal(ops.shape(x)) if training else x

    keras.backend.clear_session(free_memory=False)
    model = net(layers.Dense(4), Noisy())
    if what == "norms":
        kpg.per_sample_norms(compiled(model), X, Y)
    else:
        trained(compiled(model, what), X, Y)
    assert keras.random.normal((2,)).shape == (2,)


@pytest.mark.parametrize("mode", ["batch", "vectorized", "per_sample"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_layer_that_is_built_in_compute_loss(mode):
    class Retrieval(kpg.PerGradModel):
        def __init__(self):
            super().__init__()
            self.query = layers.Embedding(20, 6)
            self.candidate = layers.Embedding(20, 6)

        def call(self, x, training=False):
            return self.query(x)

        def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
            found = ops.sum(y_pred * self.candidate(y["movie"]), -1)
            return ops.mean((found - y["rating"]) ** 2)

    y = {"movie": integers(20, 8), "rating": Y[:, 0]}
    model = Retrieval()
    model.compile("sgd", gradient_mode=mode)
    trained(model, integers(20, 8, seed=1), y)


# What is left behind.
class Seen(layers.Layer):
    """Counts the ids that it has seen."""

    def __init__(self):
        super().__init__()
        self.table = tf.lookup.experimental.MutableHashTable(
            tf.int64, tf.int64, 0
        )

    def call(self, x):
        ids = tf.reshape(tf.cast(x, tf.int64), [-1])
        self.table.insert(ids, self.table.lookup(ids) + 1)
        return tf.cast(x, tf.float32)


def _counts(mode):
    seen = Seen()
    model = compiled(net(seen, dtype="int32"), mode)
    trained(model, np.arange(40).reshape(8, 5) + 100, Y)
    keys, values = (t.numpy() for t in seen.table.export())
    return len(keys), values.max(), keys.min()


def test_tables_are_changed_once():
    assert _counts("vectorized") == _counts("batch") == (40, 1, 100)


def test_tables_are_not_changed_for_each_sample():
    with pytest.raises(ValueError, match="does not know"):
        _counts("per_sample")


def test_draws_of_other_threads_are_their_own():
    wanted, found = np.asarray(keras.random.uniform((2,), seed=3)), []

    def work():
        found.append(np.asarray(keras.random.uniform((2,), seed=3)))

    def draw(x):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return x

    model = net(Apply(draw), layers.Dropout(0.3, seed=2))
    trained(compiled(model, "per_sample"), X, Y)
    assert found
    for numbers in found:
        np.testing.assert_array_equal(numbers, wanted)


def _refused(optimizer=None):
    model = net(layers.Dense(4), zoo.Centre(), cls=kpg.PerGradModel)
    compiled(model, "vectorized", optimizer=optimizer)
    with pytest.raises(ValueError, match="mixes the samples"):
        trained(model, X, Y)
    return model


def test_the_optimizer_is_usable_after_a_refusal():
    optimizer = keras.optimizers.Adam()
    model = _refused(optimizer)
    trained(compiled(model, "batch", optimizer=optimizer), X, Y)


def test_a_refused_model_is_collected():
    known = weakref.ref(_refused())
    keras.backend.clear_session()
    gc.collect()
    assert known() is None


@pytest.mark.usefixtures("float64")
def test_nodes_of_one_graph(monkeypatch):
    features = tf.constant(normal(12, 4))
    edges = integers(12, 2, 30)

    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.first, self.out = layers.Dense(6, "relu"), layers.Dense(3)
            self.sent = [layers.Dense(6, "gelu") for _ in range(2)]
            self.norms = [layers.LayerNormalization() for _ in range(2)]

        def call(self, places):
            h = self.first(features)
            for sent, norm in zip(self.sent, self.norms):
                rows = tf.gather(norm(sent(h)), edges[1])
                h += tf.math.unsorted_segment_sum(rows, edges[0], 12)
            return self.out(tf.gather(h, places))

    model, x, y = Net(), integers(12, 5), normal(5, 3)
    model(x)
    model.compile("sgd", "mse")
    oracle.check(kpg.per_sample_gradients(model, x, y), model, x, y=y)
    # The weights behind the features share a backward pass for each sample.
    loops, plain = [], tf.map_fn
    monkeypatch.setattr(
        tf,
        "map_fn",
        lambda *args, **how: loops.append(0) or plain(*args, **how),
    )
    model.compile("sgd", "mse")
    kpg.per_sample_norms(model, x, y)
    assert len(loops) < len(model.trainable_variables) / 2
