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
from tests.proof.private_fits import fit_privately

layers, ops = keras.layers, keras.ops
_rng = np.random.default_rng(0)
X = _rng.normal(size=(8, 5)).astype("float32")
Y = _rng.normal(size=(8, 3)).astype("float32")
MIXED = "mixes the samples|depend on the whole batch|compares the samples"
ACCUMULATED = kpg.Accumulated(microbatch_size=4)


def _net(*parts, shape=(5,), dtype=None, head=None, cls=kpg.PerGradModel):
    inputs = hidden = keras.Input(shape, dtype=dtype)
    for part in parts:
        hidden = part(hidden)
    return cls(inputs, (head or layers.Dense(3))(hidden))


def _fit(model, data, mode="vectorized", loss="mse", **kwargs):
    model.compile(keras.optimizers.SGD(0.1), loss, gradient_mode=mode, **kwargs)
    if not isinstance(data, tf.data.Dataset):
        data = tf.data.Dataset.from_tensor_slices(data).batch(16)
    model.fit(data, shuffle=False, verbose=0)


class Sorted(layers.Layer):
    """Acts on the samples in the order of their lengths."""

    def build(self, shape):
        self.w = self.add_weight((shape[-1], 4))

    def call(self, x):
        used = tf.cast(tf.reduce_any(x != 0, -1), tf.int32)
        order = tf.argsort(tf.reduce_sum(used, -1), stable=True)
        h = tf.tanh(tf.matmul(tf.gather(x, order), self.w.value))
        return tf.gather(h, tf.argsort(order))

    def compute_output_shape(self, shape):
        return (*shape[:2], 4)


class Packed(Sorted):
    """Acts on what is no padding, packed into one axis."""

    def call(self, x):
        where = tf.where(tf.reduce_any(x != 0, -1))
        h = tf.tanh(tf.matmul(tf.gather_nd(x, where), self.w.value))
        sizes = tf.concat([tf.shape(x)[:2], [4]], 0)
        return tf.scatter_nd(where, h, tf.cast(sizes, tf.int64))


@pytest.mark.parametrize("layer", [Sorted, Packed])
def test_lengths_decide_where_samples_are(layer):
    x = _rng.normal(size=(8, 6, 5)).astype("float32")
    model = _net(layer(), layers.GlobalAveragePooling1D(), shape=(6, 5))
    model.compile("sgd", "mse", gradient_mode="vectorized")
    # All of one length, so that nothing shows.
    with pytest.raises(ValueError, match=r"\((Sorted|Packed)\) mixes"):
        kpg.per_sample_norms(model, x, Y)
    with pytest.raises(ValueError, match=r"\((Sorted|Packed)\) mixes"):
        model.fit(x, Y, verbose=0)


def _in_batch(y, p):
    del y
    users, items = p[:, :4], p[:, 4:]
    return keras.losses.sparse_categorical_crossentropy(
        ops.arange(ops.shape(p)[0]),
        ops.matmul(users, ops.transpose(items)),
        from_logits=True,
    )


def _two_towers():
    inputs = keras.Input((2,), dtype="int64")
    known = list(range(1000, 1030))

    def tower(k):
        ids = layers.IntegerLookup(vocabulary=known)(inputs[:, k])
        return layers.Dense(4)(layers.Embedding(31, 8)(ids))

    both = layers.Concatenate()([tower(0), tower(1)])
    return kpg.PerGradModel(inputs, both)


def test_two_towers_with_negatives_of_the_batch():
    x, y = _rng.integers(1000, 1030, (8, 2)), np.zeros((8, 1), "float32")
    with pytest.raises(ValueError, match="compares the samples"):
        _fit(_two_towers(), (x, y), loss=_in_batch)
    with pytest.raises(ValueError, match="compares the samples"):
        fit_privately(_two_towers(), x, y, _in_batch)


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


@pytest.mark.parametrize("mode", ["vectorized", "per_sample"])
def test_gradient_penalty_trains_as_in_keras(mode):
    def weights(cls, **how):
        keras.utils.set_random_seed(1)
        model = _net(GradientPenalty(), head=layers.Identity(), cls=cls)
        model.compile("sgd", "mae", **how)
        model.fit(X, np.zeros((8, 1)), batch_size=8, verbose=0)
        return model.get_weights()

    found = weights(kpg.PerGradModel, gradient_mode=mode)
    for ours, expected in zip(found, weights(keras.Model)):
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-6)


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


class Experts(layers.Layer):
    """The sum of experts, all of which begin at zero."""

    def build(self, shape):
        self.w = self.add_weight((3, shape[-1], 5), "zeros")

    def call(self, x):
        size = ops.shape(x)
        x = ops.reshape(x, (-1, size[-1]))
        x = ops.sum(ops.einsum("th,ehi->eti", x, self.w), 0)
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
    "experts": (lambda: _behind_zeros(Experts()), (6, 4), (3,)),
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


@pytest.mark.parametrize("name", SOUND)
@pytest.mark.usefixtures("float64")
def test_sound_models_are_exact(name):
    parts, of_x, of_y = SOUND[name]
    model = _net(*parts(), shape=of_x, head=layers.Identity(), cls=keras.Model)
    model.compile("sgd", "mae" if name == "gradient penalty" else "mse")
    x, y = _rng.normal(size=(4, *of_x)), _rng.normal(size=(4, *of_y))
    oracle.check(kpg.per_sample_gradients(model, x, y), model, x, y)


def test_vocabulary_without_room_for_others():
    words = ["cat", "dog", "cow", "pig"]
    model = _net(
        layers.StringLookup(vocabulary=words, num_oov_indices=0),
        layers.Embedding(4, 4),
        layers.Flatten(),
        shape=(1,),
        dtype="string",
    )
    _fit(model, (np.array(words * 2).reshape(8, 1), Y))


@pytest.mark.parametrize("what", ["norms", "vectorized", ACCUMULATED])
def test_global_seed_first_used_in_the_step(what):
    class Noisy(layers.Layer):
        def call(self, x, training=False):
            # Not before the step: a functional model is made untrained.
            return x + keras.random.normal(ops.shape(x)) if training else x

    keras.backend.clear_session(free_memory=False)
    model = _net(layers.Dense(4), Noisy())
    if what == "norms":
        model.compile("sgd", "mse")
        kpg.per_sample_norms(model, X, Y)
    else:
        _fit(model, (X, Y), what)
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

    y = {"movie": _rng.integers(0, 20, 8), "rating": Y[:, 0]}
    model = Retrieval()
    model.compile("sgd", gradient_mode=mode)
    model.fit(_rng.integers(0, 20, 8), y, verbose=0)


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
    model = _net(seen, dtype="int32")
    _fit(model, (np.arange(40).reshape(8, 5) + 100, Y), mode)
    keys, values = (t.numpy() for t in seen.table.export())
    return len(keys), values.max(), keys.min()


def test_tables_are_changed_once():
    assert _counts("vectorized") == _counts("batch") == (40, 1, 100)


def test_tables_are_not_changed_for_each_sample():
    with pytest.raises(ValueError, match="does not know"):
        _counts("per_sample")


def test_draws_of_other_threads_are_their_own():
    wanted, found = np.asarray(keras.random.uniform((2,), seed=3)), []

    class Draws(layers.Layer):
        def call(self, x):
            def work():
                found.append(np.asarray(keras.random.uniform((2,), seed=3)))

            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            return x

    _fit(_net(Draws(), layers.Dropout(0.3, seed=2)), (X, Y), "per_sample")
    assert found
    for numbers in found:
        np.testing.assert_array_equal(numbers, wanted)


def test_the_optimizer_is_usable_after_a_refusal():
    model, optimizer = (
        _net(layers.Dense(4), zoo.Centre()),
        keras.optimizers.Adam(),
    )
    model.compile(optimizer, "mse", gradient_mode="vectorized")
    with pytest.raises(ValueError, match=MIXED):
        model.fit(X, Y, verbose=0)
    model.compile(optimizer, "mse", gradient_mode="batch")
    model.fit(X, Y, verbose=0)


def test_a_refused_model_is_collected():
    model = _net(layers.Dense(4), zoo.Centre())
    model.compile("sgd", "mse", gradient_mode="vectorized")
    with pytest.raises(ValueError, match=MIXED):
        model.fit(X, Y, verbose=0)
    known = weakref.ref(model)
    del model
    keras.backend.clear_session()
    gc.collect()
    assert known() is None


@pytest.mark.usefixtures("float64")
def test_nodes_of_one_graph(monkeypatch):
    features = tf.constant(_rng.normal(size=(12, 4)))
    edges = _rng.integers(0, 12, (2, 30))

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

    model, x, y = Net(), _rng.integers(0, 12, 5), _rng.normal(size=(5, 3))
    model(x)
    model.compile("sgd", "mse")
    oracle.check(kpg.per_sample_gradients(model, x, y), model, x, y)
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
