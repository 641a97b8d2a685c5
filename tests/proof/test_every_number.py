"""What is proved holds for every number of samples, and for every length."""

import keras
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.uses import TracedStep, refusals
from tests.models.making import compiled, net
from tests.proof.mixing_cases import Apply

layers = keras.layers


def _refusals(function, *sizes):
    """Why a layer in a model for any number of samples is refused, texts."""

    def same_shape(x):
        return tf.ensure_shape(function(x), x.shape)

    parts = [layers.Dense(3), Apply(same_shape)]
    if sizes:
        parts.append(getattr(layers, f"GlobalAveragePooling{len(sizes)}D")())
    model = net(*parts, shape=(*sizes, 2), units=1, cls=kpg.PerGradModel)
    x = tf.TensorSpec([None, *sizes, 2], tf.float32)
    y = tf.TensorSpec([None, 1], tf.float32)
    step = TracedStep(compiled(model), (x, y, None))
    return [str(e) for e in refusals(step)]


def _count(x):
    return tf.shape(x)[0]


def _rows(numbers):
    """Rows of the batch by numbers that follow how many there are."""

    def function(x):
        return x * tf.gather(x, numbers(_count(x)))

    return function


def _through(dtype):
    def numbers(n):
        return tf.cast(tf.cast(tf.range(n), dtype), tf.int32)

    return _rows(numbers)


def _first(size):
    """A reshape to a first size, and back."""

    def function(x):
        blocks = tf.reshape(x, [size(_count(x)), -1, 3])
        blocks *= tf.reduce_mean(blocks, 1, keepdims=True)
        return tf.reshape(blocks, tf.shape(x))

    return function


def _by_shape_of(size):
    """The same with the size of a tensor of ones."""
    return _first(lambda n: tf.shape(tf.ones([size(n), 2]))[0])


def _by_columns(dtype):
    def function(x):
        best = tf.argmax(x, -1, tf.int32)
        places = tf.stack([tf.range(_count(x)), best], -1)
        places = tf.cast(tf.cast(places, dtype), tf.int32)
        return x * tf.gather_nd(x, places)[:, None]

    return function


def _clipped_to_the_number(x):
    """Blocks of 256 numbers for each sample; places may reach behind one."""
    n = _count(x)
    table = tf.repeat(x, 256, 0)
    own = tf.cast(tf.argmax(x, -1), tf.int32) * 1000
    own = tf.minimum(own, n - 1)
    return x * tf.gather(table, tf.range(n) * 256 + own)


def _in_own_block(x):
    own = tf.clip_by_value(tf.cast(tf.argmax(x, -1), tf.int32) * 1000, 0, 255)
    table = tf.reshape(tf.tile(x[:, None], [1, 256, 1]), [-1, 3])
    return x * tf.gather(table, tf.range(_count(x)) * 256 + own)


def _mapped(limit):
    def function(x):
        n = _count(x)
        given = tf.TensorArray(tf.float32, n).unstack(x)
        out = tf.TensorArray(tf.float32, n)

        def body(i, out):
            return i + 1, out.write(i, given.read(i) * 2)

        _, out = tf.while_loop(
            lambda i, out: i < n, body, [0, out], maximum_iterations=limit(n)
        )
        return out.stack()

    return function


def _in_table(x):
    table = tf.constant(list(range(256)) * 4)
    return x * tf.gather(x, tf.gather(table, tf.range(_count(x))))


def _sliced_table(x):
    table = tf.constant(list(range(256)) * 4)
    return x * tf.gather(x, table[: _count(x)])


def _in_a_function(x):
    @tf.function(autograph=False)
    def narrow(n):
        return tf.cast(tf.cast(tf.range(n), tf.uint8), tf.int32)

    return x * tf.gather(x, narrow(_count(x)))


def _given_end(x):
    return tf.concat([x[:300] * 2, x[300:]], 0)


def _padded(x):
    few = x[:300]
    return tf.reshape(tf.reshape(few, [_count(few), -1]), tf.shape(x))


def _of_shape(size):
    """Ones of a shape that is right for one number alone."""

    def function(x):
        ones = tf.ones([1, size(_count(x)), 1])
        spread = tf.reshape(x[:, None] * ones, [-1, 3])
        return spread[: _count(x)]

    return function


ONE_NUMBER = {
    "uint8": _through(tf.uint8),
    "int16": _through(tf.int16),
    "float16": _through(tf.float16),
    "bfloat16": _through(tf.bfloat16),
    "modulo 256": _rows(lambda n: tf.range(n) % 256),
    "by a quotient": _rows(lambda n: tf.range(n) - tf.range(n) // 256 * 256),
    "bitwise": _rows(lambda n: tf.bitwise.bitwise_and(tf.range(n), 255)),
    "inverted bits": _rows(
        lambda n: tf.cast(
            tf.bitwise.invert(
                tf.bitwise.invert(tf.cast(tf.range(n), tf.uint8))
            ),
            tf.int32,
        )
    ),
    "clipped": _rows(lambda n: tf.minimum(tf.range(n), 250)),
    "chosen by a comparison": _rows(
        lambda n: tf.where(n > 256, n - 1 - tf.range(n), tf.range(n))
    ),
    "wraps in a product": _rows(lambda n: tf.range(n) * 2**23 // 2**23),
    "by a float": _rows(
        lambda n: tf.cast(
            tf.math.sqrt(tf.cast(tf.range(n), tf.float32) ** 2), tf.int32
        )
    ),
    "from a table": _in_table,
    "from a part of a table": _sliced_table,
    "in a function": _in_a_function,
    "columns": _by_columns(tf.uint8),
    "first size": _first(lambda n: tf.minimum(n, 256)),
    "first size by a float": _first(
        lambda n: tf.cast(tf.minimum(tf.cast(n, tf.float32), 256.0), tf.int32)
    ),
    "first size rounded": _first(lambda n: n // 2 * 2 + 1),
    "size of ones": _by_shape_of(lambda n: tf.minimum(n, 256)),
    "shape of ones": _of_shape(lambda n: tf.maximum(n - 250, 1)),
    "more turns than are given": _mapped(lambda n: 300),
    "a slice to a given end": _padded,
    "two slices": _given_end,
}
EVERY_NUMBER = {
    "in order": _rows(tf.range),
    "int64": _through(tf.int64),
    "uint32": _through(tf.uint32),
    "modulo their number": _rows(lambda n: tf.range(2 * n)[n:] % n),
    "at least one": _rows(lambda n: tf.range(tf.maximum(n, 1))),
    "by a quotient": _rows(lambda n: tf.range(n * 3)[::3] // 3),
    "columns": _by_columns(tf.int64),
    "first size": _first(lambda n: n),
    "first size by a quotient": _first(lambda n: n * 6 // 6),
    "size of ones": _by_shape_of(lambda n: n),
    "own blocks": _in_own_block,
    "turns": _mapped(lambda n: n),
}


@pytest.mark.parametrize("name", ONE_NUMBER)
def test_what_holds_for_one_number_of_samples_is_refused(name):
    assert _refusals(ONE_NUMBER[name])


@pytest.mark.parametrize("name", EVERY_NUMBER)
def test_what_holds_for_every_number_of_samples_is_served(name):
    assert _refusals(EVERY_NUMBER[name]) == []


def _windows(*sizes):
    """Means of windows, by sizes that follow those of the input."""

    def function(x):
        shape = tf.unstack(tf.shape(x))
        given = [s(shape) if callable(s) else s for s in sizes]
        windows = tf.reshape(x, given)
        windows *= tf.reduce_mean(windows, 1, keepdims=True)
        return tf.reshape(windows, shape)

    return function


def _samples(shape):
    return shape[0]


def _length(shape):
    return shape[1]


def _sixteenths(shape):
    return shape[0] * shape[1] // 16


def _own_steps(x):
    """The step with the largest first entry, among those of each sample."""
    n = _count(x)
    best = tf.argmax(x[..., 0], 1, tf.int32) + tf.range(n) * 64
    blocks = tf.reshape(tf.tile(x[:, :1], [1, 64, 1]), [n * 64, 3])
    return x * tf.gather(blocks, best)[:, None]


def _halves(x):
    """Down and up again, beside what was there: lengths are even."""
    half = tf.nn.avg_pool1d(x, 2, 2, "VALID")
    return x * tf.reshape(tf.stack([half, half], 2), [_count(x), -1, 3])


def _halves_in_windows(*sizes):
    windows = _windows(*sizes)
    return lambda x: windows(_halves(x))


#: Functions, and the sizes between the samples and the features.
ONE_LENGTH = {
    "windows": (_windows(-1, 16, 3), None),
    "windows of a quotient": (_windows(-1, lambda s: s[1] // 40, 3), None),
    "windows by their number": (_windows(_sixteenths, 16, 3), None),
    "windows of a given length": (_windows(-1, 64, 3), None),
    "halves that are even": (_windows(-1, lambda s: s[1] // 2 * 2, 3), None),
    "windows of halves": (_halves_in_windows(-1, 16, 3), None),
    "halves by their number": (_halves_in_windows(_sixteenths, 16, 3), None),
    "places": (_own_steps, None),
    "height for width": (
        _windows(-1, _length, _length, 3),
        None,
        None,
    ),
}
EVERY_LENGTH = {
    "windows": (_windows(_samples, -1, 16, 3), None),
    "windows of a quotient": (
        _windows(_samples, lambda s: s[1] // 16, 16, 3),
        None,
    ),
    "steps": (_windows(-1, 3), None),
    "whole samples": (_windows(-1, _length, 3), None),
    "flat": (_windows(-1, lambda s: s[1] * s[2]), None),
    "halves": (_halves, None),
    "windows of halves": (_halves_in_windows(_samples, -1, 3), None),
    "a layer for each step": (
        lambda x: layers.TimeDistributed(layers.Activation("tanh"))(x),
        None,
    ),
    "whole samples of halves": (_halves_in_windows(-1, _length, 3), None),
    "a known length": (_windows(-1, 16, 3), 32),
    "rows of images": (_windows(-1, lambda s: s[2], 3), None, None),
}


@pytest.mark.parametrize("name", ONE_LENGTH)
def test_what_holds_for_one_length_is_refused(name):
    assert _refusals(*ONE_LENGTH[name])


@pytest.mark.parametrize("name", EVERY_LENGTH)
def test_what_holds_for_every_length_is_served(name):
    assert _refusals(*EVERY_LENGTH[name]) == []


class _Like(layers.Layer):
    """Windows of one input as long as another one."""

    def __init__(self, whose):
        super().__init__()
        self.whose = whose

    def call(self, pair):
        length = tf.shape(pair[self.whose])[1]
        windows = tf.reshape(pair[0], [-1, length, 3])
        windows *= tf.reduce_mean(windows, 1, keepdims=True)
        return tf.reshape(windows, tf.shape(pair[0]))

    def compute_output_shape(self, shapes):
        return shapes[0]


@pytest.mark.parametrize(("whose", "refused"), [(0, False), (1, True)])
def test_lengths_of_two_inputs_may_differ(whose, refused):
    inputs = [keras.Input((None, 3)), keras.Input((None, 3))]
    hidden = _Like(whose)([layers.Dense(3)(inputs[0]), inputs[1]])
    output = layers.Dense(1)(layers.GlobalAveragePooling1D()(hidden))
    model = kpg.PerGradModel(inputs, output)
    model.compile("sgd", "mse")
    x = [tf.TensorSpec([None, None, 3])] * 2
    traced = TracedStep(model, (x, tf.TensorSpec([None, 1]), None))
    assert bool(refusals(traced)) == refused
