"""Models that mix the samples of a batch, and sound ones like them.

A case is a function without arguments that returns a compiled model, x and y.
"""

import functools

import keras
import numpy as np
import tensorflow as tf

from tests.proof.loop_cases import LOOPS

layers, ops = keras.layers, keras.ops
#: How many samples.
N = 4
_rng = np.random.default_rng(3)
X = _rng.normal(size=(N, 5))
SEQUENCES = _rng.normal(size=(N, 6, 5))
Y = _rng.normal(size=(N, 3))
TRUTHS = (Y > 0).astype("float64")
LABELS = np.array([[0], [1], [2], [3]])
_START = keras.initializers.RandomNormal(stddev=0.5, seed=1)


class Apply(layers.Layer):
    """A function as a layer; its output has the shape of its input."""

    def __init__(self, function, **given):
        super().__init__(**given)
        self.function = function

    def call(self, x):
        return self.function(x)

    def compute_output_shape(self, shape):
        return shape


class RowLoss(keras.losses.Loss):
    """A function of targets and outputs as a loss."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, y_true, y_pred):
        return self.function(y_true, y_pred)


def dense(size, activation=None, **kwargs):
    arguments = {"kernel_initializer": _START, **kwargs}
    return layers.Dense(size, activation, **arguments)


def stacked(layer, shape=(5,), loss="mse", *, x=None, head=None, dtype=None):
    """A model with a layer between dense ones, compiled, and its data."""
    inputs = keras.Input(shape, dtype=dtype)
    hidden = inputs if dtype else dense(4, "tanh")(inputs)
    hidden = layer(hidden)
    if len(hidden.shape) > 2:
        hidden = layers.Flatten()(hidden)
    model = keras.Model(inputs, (head or dense(3))(hidden))
    model.compile("sgd", loss)
    if x is None:
        x = X if len(shape) == 1 else SEQUENCES
    return model, x, Y


#: name → maker.
MIXING, SOUND = {}, {}


def add(cases, name, make):
    assert name not in cases, name
    cases[name] = make


def pair(name, mixing, sound):
    """Add two makers, of which the first mixes samples."""
    add(MIXING, name, mixing)
    add(SOUND, name, sound)


def layer_pair(name, mixing, sound, **kwargs):
    """Add two functions that stand in a layer."""
    made_pair(name, lambda: Apply(mixing), lambda: Apply(sound), **kwargs)


def made_pair(name, mixing, sound, **kwargs):
    """Add two makers of layers."""
    pair(
        name,
        lambda: stacked(mixing(), **kwargs),
        lambda: stacked(sound(), **kwargs),
    )


def of_loss(function, y=Y, layer=layers.Identity, **kwargs):
    """Return the case of a function of targets and outputs."""

    def make():
        model, x, _ = stacked(layer(), **kwargs)
        model.compile("sgd", RowLoss(function))
        return model, x, y

    return make


def loss_pair(name, mixing, sound, **kwargs):
    """Add two functions of targets and outputs."""
    pair(name, of_loss(mixing, **kwargs), of_loss(sound, **kwargs))


def transposed(function):
    """Return a function of columns, to be used on rows."""
    return lambda x: tf.transpose(function(tf.transpose(x)))


def by_axis(function):
    """Return the function over the samples, and that over the features."""
    return (functools.partial(function, axis=axis) for axis in (0, 1))


def varied(function, mixing, sound):
    """Return the function with two values of its last argument."""
    return (lambda *given, k=k: function(*given, k) for k in (mixing, sound))


def both_ways(name, function):
    """Add a case of what acts along columns, and along rows."""
    layer_pair(name, function, transposed(function))


# Along the samples' axis, and along the features'.
both_ways("mean", lambda h: h - tf.reduce_mean(h, 0))
both_ways("largest", lambda h: h / (1 + tf.reduce_max(abs(h), 0)))
both_ways("product", lambda h: h + tf.reduce_prod(h, 0))
both_ways("log_sum_exp", lambda h: h - tf.reduce_logsumexp(h, 0))
both_ways("l2_normalize", lambda h: tf.nn.l2_normalize(h, 0))
both_ways("softmax", lambda h: ops.softmax(h, 0))
both_ways("variance", lambda h: h / (1 + tf.math.reduce_variance(h, 0)))
both_ways("roll", lambda h: h + tf.roll(h, 1, 0))
both_ways("reverse", lambda h: h + tf.reverse(h, [0]))
both_ways("backward_slice", lambda h: h + h[::-1])
both_ways("cumulative_sum", lambda h: tf.cumsum(h, 0))
both_ways("cumulative_product", lambda h: tf.math.cumprod(h, 0))
both_ways("sort", lambda h: tf.sort(h, 0))
both_ways("fixed_order", lambda h: h + tf.gather(h, [1, 0, 3, 2]))
both_ways("first_row", lambda h: h + h[:1])
both_ways("next_row", lambda h: tf.concat([h[1:], h[:1]], 0))
both_ways("difference", lambda h: h - tf.pad(h[:-1], [[1, 0], [0, 0]]))
both_ways(
    "largest_place",
    lambda h: h * tf.one_hot(tf.argmax(h), 4, 1.0, 0.0, 0, "float64"),
)
both_ways("any", lambda h: h * tf.cast(tf.reduce_any(h > 0.1, 0), h.dtype))
both_ways("range", lambda h: (h - tf.reduce_min(h, 0)) / 3)
both_ways(
    "fourier",
    lambda h: tf.transpose(
        tf.math.real(tf.signal.fft(tf.cast(tf.transpose(h), "complex128")))
    ),
)
both_ways("scan", lambda h: tf.scan(lambda a, e: 0.5 * a + e, h))
both_ways(
    "split_in_wrong_order", lambda h: tf.concat(tf.split(h, 2, 0)[::-1], 0)
)
both_ways("norm", lambda h: h / tf.norm(h, axis=0))
both_ways(
    "largest_k", lambda h: tf.transpose(tf.math.top_k(tf.transpose(h), 4)[0])
)
both_ways(
    "segments", lambda h: h + tf.math.unsorted_segment_sum(h, [0, 0, 1, 1], 4)
)
both_ways(
    "band_matrix",
    lambda h: ops.matmul(
        tf.linalg.band_part(tf.ones((4, 4), h.dtype), -1, 0), h
    ),
)
both_ways(
    "softmax_of_stopped", lambda h: h * tf.stop_gradient(ops.softmax(h, 0))
)

# Reshapes, products, algebra.
layer_pair(
    "order",
    lambda h: tf.gather(h, tf.argsort(h[:, 0])),
    lambda h: tf.gather(h, tf.argsort(h, 1), axis=1, batch_dims=1),
)
layer_pair(
    "pairs",
    lambda h: ops.matmul(ops.matmul(h, tf.transpose(h)), h),
    lambda h: ops.matmul(h[:, :, None] * h[:, None], h[:, :, None])[:, :, 0],
)
layer_pair(
    "convolution",
    lambda h: tf.nn.conv1d(h[None], tf.ones((3, 4, 4), h.dtype), 1, "SAME")[0],
    lambda h: tf.nn.conv1d(
        h[:, :, None], tf.ones((3, 1, 1), h.dtype), 1, "SAME"
    )[:, :, 0],
)
for _pool in (ops.average_pool, ops.max_pool):
    layer_pair(
        _pool.__name__,
        lambda h, pool=_pool: pool(h[None], 3, 1, "same")[0],
        lambda h, pool=_pool: pool(h[:, :, None], 3, 1, "same")[:, :, 0],
    )
layer_pair(
    "shuffle",
    lambda h: h + tf.random.shuffle(h, seed=1),
    lambda h: (
        h
        + tf.gather(
            h,
            tf.random.experimental.stateless_shuffle(tf.range(4), [1, 2]),
            axis=1,
        )
    ),
)
layer_pair(
    "scatter",
    lambda h: tf.scatter_nd([[1], [0], [3], [2]], h, [4, 4]),
    lambda h: tf.transpose(
        tf.scatter_nd(
            [[1], [0], [3], [2]], tf.transpose(h), [4, tf.shape(h)[0]]
        )
    ),
)
layer_pair(
    "reshape_takes_apart",
    lambda h: tf.reshape(tf.transpose(tf.reshape(h, (4, -1))), (-1, 4)),
    lambda h: tf.reshape(
        tf.transpose(tf.reshape(h, (-1, 2, 2)), (0, 2, 1)), (-1, 4)
    ),
)
layer_pair(
    "transposed_reshape",
    lambda h: tf.reshape(tf.transpose(h), (-1, 4)),
    lambda h: tf.transpose(tf.reshape(tf.transpose(h), (4, -1))),
)
layer_pair(
    "halves_added",
    lambda h: h + tf.tile(ops.sum(ops.reshape(h, (2, -1, 4)), 0), (2, 1)),
    lambda h: h + tf.tile(tf.reduce_sum(tf.reshape(h, (-1, 2, 2)), 1), (1, 2)),
)
layer_pair(
    "tile_in_wrong_order",
    lambda h: tf.reshape(
        tf.reduce_sum(tf.reshape(tf.tile(h, (2, 1)), (-1, 2, 4)), 1), (-1, 4)
    ),
    lambda h: tf.reduce_sum(tf.reshape(tf.repeat(h, 2, 0), (-1, 2, 4)), 1),
)
layer_pair(
    "second_moments",
    lambda h: ops.matmul(h, ops.matmul(tf.transpose(h), h)),
    lambda h: tf.einsum("ni,nj,nj->ni", h, h, h),
)
layer_pair(
    "einsum_of_pairs",
    lambda h: tf.einsum("ni,mi,mj->nj", h, h, h),
    lambda h: tf.einsum("ni,nj->nj", h, h),
)


def _moments(h):
    """Second moments over the samples, and one on the diagonal."""
    return ops.matmul(tf.transpose(h), h) + tf.eye(4, dtype=h.dtype)


layer_pair(
    "inverse",
    lambda h: ops.matmul(h, tf.linalg.inv(_moments(h))),
    lambda h: tf.reshape(
        tf.linalg.inv(
            tf.reshape(h, (-1, 2, 2)) * 0.1 + tf.eye(2, dtype=h.dtype)
        ),
        (-1, 4),
    ),
)
layer_pair(
    "cholesky",
    lambda h: ops.matmul(h, tf.linalg.cholesky(_moments(h))),
    lambda h: h * tf.linalg.cholesky(h[:, :1, None] ** 2 + 1)[:, 0],
)
layer_pair(
    "global_norm",
    lambda h: tf.clip_by_global_norm([h], 0.1)[0],
    lambda h: tf.clip_by_norm(h, 0.1, axes=[1]),
)
layer_pair(
    "norm_of_all",
    lambda h: h / tf.norm(h),
    lambda h: h / tf.norm(h, axis=1, keepdims=True),
)


def _pieces(h):
    return tf.space_to_batch(h[:, None, :, None], [1, 2], [[0, 0], [0, 0]])


def _from_pieces(pieces):
    return tf.batch_to_space(pieces, [1, 2], [[0, 0], [0, 0]])[:, 0, :, 0]


layer_pair(
    "pieces_of_the_batch",
    lambda h: _from_pieces(_pieces(h)[::-1]),
    lambda h: _from_pieces(_pieces(h)),
)

# Ids, masks and places that come from the batch.
layer_pair(
    "segments_by_ids_of_others",
    lambda h: tf.gather(
        tf.math.unsorted_segment_sum(h, tf.cast(h[:, 0] > 0, "int32"), 2),
        tf.cast(h[:, 0] > 0, "int32"),
    ),
    lambda h: h * tf.cast(h[:, :1] > 0, h.dtype),
)
layer_pair(
    "rows_of_others_by_ids",
    lambda h: tf.gather(h, tf.cast(h[:, 0] > 0, "int32")),
    lambda h: (
        tf.gather(h, tf.cast(h[:, :1] > 0, "int32"), axis=1, batch_dims=1) + h
    ),
)
layer_pair(
    "packed_rows",
    lambda h: tf.concat(
        [tf.boolean_mask(h, h[:, 0] > 0), tf.boolean_mask(h, h[:, 0] <= 0)], 0
    ),
    lambda h: tf.where(h[:, :1] > 0, h, 2 * h),
)


def _by_length(h):
    """In the order of the samples' lengths, and back."""
    used = tf.cast(tf.reduce_any(h != 0, -1), tf.int32)
    order = tf.argsort(tf.reduce_sum(used, -1), stable=True)
    return tf.gather(tf.tanh(tf.gather(h, order)), tf.argsort(order))


def _used_first(h):
    """The same of each sample's steps."""
    used = tf.cast(tf.reduce_any(h != 0, -1), tf.int32)
    order = tf.argsort(used, stable=True)
    found = tf.tanh(tf.gather(h, order, batch_dims=1))
    return tf.gather(found, tf.argsort(order), batch_dims=1)


def _packed_steps(h):
    """What is no padding, packed into one axis."""
    where = tf.where(tf.reduce_any(h != 0, -1))
    found = tf.tanh(tf.gather_nd(h, where))
    return tf.scatter_nd(where, found, tf.shape(h, tf.int64))


def _used_alone(h):
    used = tf.reduce_any(h != 0, -1, keepdims=True)
    return tf.where(used, tf.tanh(h), tf.zeros_like(h))


layer_pair("order_of_lengths", _by_length, _used_first, shape=(6, 5))
layer_pair("packed_steps", _packed_steps, _used_alone, shape=(6, 5))
layer_pair(
    "mask_of_others",
    *by_axis(lambda h, axis: tf.where(tf.roll(h, 1, axis) > 0, h, 0.5 * h)),
)
layer_pair(
    "places_of_the_maximum",
    lambda h: h + tf.gather(h, tf.argmax(h[:, 0])),
    lambda h: h + tf.gather(h, tf.argmax(h, 1)[:, None], batch_dims=1),
)
layer_pair(
    "attention_over_samples",
    lambda h: ops.dot_product_attention(*[h[None, :, None]] * 3)[0, :, 0],
    lambda h: ops.reshape(
        ops.dot_product_attention(*[ops.reshape(h, (-1, 2, 1, 2))] * 3), (-1, 4)
    ),
)

# Branches and loops.
layer_pair(
    "branch_on_values",
    lambda h: tf.cond(tf.reduce_sum(h) > 0, lambda: h, lambda: 2 * h),
    lambda h: tf.where(tf.reduce_sum(h, 1, True) > 0, h, 2 * h),
)
layer_pair(
    "branch_that_mixes",
    lambda h: tf.cond(
        tf.random.uniform(()) < 0.0, lambda: h - tf.reduce_mean(h, 0), lambda: h
    ),
    lambda h: tf.cond(tf.random.uniform(()) < 2.0, lambda: h - 1, lambda: h),
)
layer_pair(
    "case_by_values",
    lambda h: tf.switch_case(
        tf.cast(tf.reduce_max(h) > 5, "int32"), [lambda: h, lambda: 2 * h]
    ),
    lambda h: tf.switch_case(
        tf.cast(tf.random.uniform(()) < 2, "int32"), [lambda: h, lambda: 2 * h]
    ),
)
layer_pair(
    "loop_as_long_as_values_say",
    lambda h: tf.while_loop(
        lambda k, v: tf.reduce_max(abs(v)) > 0.01,
        lambda k, v: (k + 1, v * 0.5),
        (0, h),
    )[1],
    lambda h: tf.while_loop(
        lambda k, v: k < 3, lambda k, v: (k + 1, tf.sin(v)), (0, h)
    )[1],
)
layer_pair(
    "loop_whose_body_mixes",
    *by_axis(
        lambda h, axis: tf.while_loop(
            lambda k, v: k < 3,
            lambda k, v: (k + 1, v + tf.roll(v, 1, axis)),
            (0, h),
        )[1]
    ),
)
layer_pair(
    "loop_that_carries_a_mean",
    lambda h: tf.while_loop(
        lambda k, m, v: k < 3,
        lambda k, m, v: (k + 1, tf.reduce_mean(v), v * 0.5 + m),
        (0, tf.zeros((), h.dtype), h),
    )[2],
    lambda h: tf.while_loop(
        lambda k, m, v: k < 3,
        lambda k, m, v: (k + 1, tf.reduce_mean(v, 1), v * 0.5 + m[:, None]),
        (0, h[:, 0], h),
    )[2],
)
for _name, _pair in LOOPS.items():
    layer_pair(_name, *_pair)


class OnWeights(layers.Layer):
    """A function of hidden numbers and a layer with weights."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def build(self, shape):
        # Not as many as there are samples.
        self.wide = self.add_weight(shape=(4, 6), initializer=_START)
        self.kernel = self.add_weight(shape=(6, 6), initializer=_START)
        self.gain = self.add_weight(shape=(6,), initializer=_START)

    def call(self, h):
        return self.function(tf.matmul(h, self.wide), self)


def _branch(h, weights, k, function, use):
    """Every other time a function, else what reads weights in the branch."""
    return tf.cond(k % 2 > 0, lambda: function(h), lambda: use(h, weights))


def _case(h, weights, k, function, use):
    branches = tf.sin, lambda h: use(h, weights), function
    return tf.switch_case(k % 3, [lambda b=b: b(h) for b in branches])


def _in_loop(choose):
    return lambda h, *others: tf.while_loop(
        lambda k, _: k < 4,
        lambda k, v: (k + 1, choose(v, others[0], k, *others[2:])),
        (0, h),
    )[1]


def _gain(h, weights):
    return h * weights.gain


def _kernel(h, weights):
    return tf.matmul(h, tf.convert_to_tensor(weights.kernel))


def _of_branches(choose, use):
    def maker(function):
        return lambda: OnWeights(
            lambda h, weights: choose(
                h, weights, tf.size(weights.gain) - 5, function, use
            )
        )

    return maker(lambda h: h * tf.tanh(tf.reduce_mean(h, 0))), maker(tf.tanh)


for _name, _choose, _use in (
    ("branch_beside_a_gain", _branch, _gain),
    ("case_beside_a_kernel", _case, _kernel),
    ("loop_of_branches_beside_a_gain", _in_loop(_branch), _gain),
    ("loop_of_branches_beside_a_kernel", _in_loop(_branch), _kernel),
    ("loops_in_a_loop_of_branches", _in_loop(_in_loop(_branch)), _gain),
):
    made_pair(_name, *_of_branches(_choose, _use))


def _counts(h, **lengths):
    numbers = tf.cast(abs(h) * 3, "int32")
    counts = tf.math.bincount(numbers, axis=-1, **lengths)
    return h * tf.cast(counts[:, :4], h.dtype)


def _any_counts(h):
    lengths = {"minlength": 4, "maxlength": 4}
    counts = tf.math.bincount(
        tf.cast(abs(h) * 3, "int32"), **lengths, axis=-1, binary_output=True
    )
    return tf.cast(counts, h.dtype)


layer_pair(
    "counts_in_as_many_columns_as_the_largest_number",
    lambda h: _counts(h, minlength=5),
    lambda h: _counts(h, minlength=5, maxlength=5),
)
layer_pair(
    "whether_any_sample_has_a_number",
    lambda h: h + _any_counts(tf.reshape(h, [-1])),
    lambda h: h + _any_counts(h),
)
layer_pair(
    "list_in_another_order",
    lambda h: tf.map_fn(
        lambda k: h[tf.shape(h)[0] - 1 - k],
        tf.range(tf.shape(h)[0]),
        fn_output_signature="float64",
    ),
    lambda h: tf.transpose(tf.map_fn(tf.sin, tf.transpose(h))),
)
layer_pair(
    "function_that_mixes",
    tf.function(lambda h: h - tf.reduce_mean(h, 0)),
    tf.function(lambda h: h - tf.reduce_mean(h, 1, True)),
)


def _positive_rows(x, dtype="float64"):
    return tf.reduce_sum(tf.cast(x[:, 0] > 0, dtype))


def _list_of_parts(h, number):
    array = tf.TensorArray(
        tf.float64, 2, infer_shape=False, element_shape=[None]
    )
    lengths = tf.stack([number, 9 - number])
    parts = array.split(tf.range(9, dtype=tf.float64), lengths)
    return h * (1 + tf.reduce_sum(parts.read(0)))


def _list_of_places(h, number):
    shape, number = tf.constant([], tf.int32), tf.cast(number, tf.int32)
    handle = tf.raw_ops.TensorListScatterV2(
        tensor=tf.constant([1.0, 2.0], h.dtype),
        indices=tf.stack([number, number + 1]),
        element_shape=shape,
        num_elements=20,
    )
    for k in range(4):
        h = h * (
            1
            + tf.raw_ops.TensorListGetItem(
                input_handle=handle,
                index=k,
                element_shape=shape,
                element_dtype=h.dtype,
            )
        )
    return h


def _list_joined(h, number):
    handle = tf.raw_ops.TensorListReserve(
        element_shape=[-1], num_elements=2, element_dtype=h.dtype
    )
    handle = tf.raw_ops.TensorListSetItem(
        input_handle=handle, index=0, item=tf.ones([2], h.dtype)
    )
    joined, _ = tf.raw_ops.TensorListConcatV2(
        input_handle=handle,
        element_shape=[-1],
        leading_dims=tf.stack([tf.constant(2, tf.int64), number]),
        element_dtype=h.dtype,
    )
    return h * (1 + tf.reduce_sum(tf.ones_like(joined)))


for _name, _function in {
    "parts_of_a_list": _list_of_parts,
    "places_in_a_list": _list_of_places,
    "lengths_of_a_joined_list": _list_joined,
}.items():
    layer_pair(
        _name,
        lambda h, f=_function: f(h, _positive_rows(h, "int64")),
        lambda h, f=_function: f(h, tf.constant(3, tf.int64)),
    )


def _path_scores(h):
    logits = tf.transpose(tf.stack([h, -h], -1), [1, 0, 2])
    lengths = tf.fill([tf.shape(h)[0]], 4)
    return tf.nn.ctc_greedy_decoder(tf.stop_gradient(logits), lengths)[1]


layer_pair(
    "scores_of_paths",
    lambda h: h * tf.reduce_sum(_path_scores(h), 0),
    lambda h: h * _path_scores(h),
)


def _solved(h, order):
    """Divide entries by those of samples in this order."""
    matrices = tf.reshape(1 + tf.nn.softplus(h), [-1, 1, 1])
    sides = tf.reshape(tf.transpose(h, order), [-1, 1, 1])
    shape = tf.gather(tf.shape(h), order)
    solved = tf.reshape(tf.linalg.solve(matrices, sides), shape)
    return tf.transpose(solved, order)


layer_pair(
    "matrices_that_lie_differently",
    lambda h: _solved(h, [1, 0]),
    lambda h: _solved(h, [0, 1]),
)
layer_pair(
    "reversed_by_truth_values",
    *(
        lambda h, dims=dims: h - tf.raw_ops.Reverse(tensor=h, dims=dims)
        for dims in ([True, False], [False, True])
    ),
)


# The way back alone.
def _own_gradient(change):
    @tf.custom_gradient
    def function(h):
        return tf.identity(h), change

    return function


def own_gradient_pair(name, mixing, sound):
    layer_pair(name, _own_gradient(mixing), _own_gradient(sound))


own_gradient_pair(
    "gradient_mean",
    lambda d: d - tf.reduce_mean(d, 0),
    lambda d: d - tf.reduce_mean(d, 1, True),
)
own_gradient_pair(
    "gradient_norm",
    lambda d: d / tf.norm(d),
    lambda d: d / tf.norm(d, axis=1, keepdims=True),
)
own_gradient_pair(
    "gradient_roll", *by_axis(lambda d, axis: tf.roll(d, 1, axis))
)
own_gradient_pair(
    "gradient_sign_of_sum", lambda d: d * tf.sign(tf.reduce_sum(d)), tf.negative
)
own_gradient_pair(
    "gradient_clipped_by_largest",
    lambda d: d / tf.reduce_max(abs(d)),
    lambda d: tf.clip_by_value(d, -0.01, 0.01),
)
own_gradient_pair(
    "gradient_softmax",
    *by_axis(lambda d, axis: d * ops.softmax(d, axis)),
)


def _way_back(change):
    """Return the case of a layer whose gradient is `change(dy, x)`.

    x are the inputs of the model: of their masks, the types allow sums.
    """

    def function(pair):
        return _own_gradient(lambda dy: change(dy, pair[1]))(pair[0])

    def make():
        inputs = keras.Input((5,))
        hidden = layers.Lambda(function, output_shape=lambda s: s[0])(
            [dense(4, "tanh")(inputs), inputs]
        )
        model = keras.Model(inputs, dense(3)(hidden))
        model.compile("sgd", "mse")
        return model, X, Y

    return make


_marks = tf.function(lambda dy, x: dy * _positive_rows(x))
for _name, _changes in {
    "divided": (
        lambda dy, x: dy / (1 + _positive_rows(x)),
        lambda dy, x: dy / (1 + tf.cast(x[:, :1] > 0, dy.dtype)),
    ),
    "bent": (
        lambda dy, x: tf.tanh(dy * _positive_rows(x)),
        lambda dy, x: tf.tanh(dy * x[:, :1]),
    ),
    "chosen": (
        lambda dy, x: tf.where(_positive_rows(x) > 1, dy, 0.0 * dy),
        lambda dy, x: tf.where(x[:, :1] > 0, dy, 0.0 * dy),
    ),
    "replaced": (
        lambda dy, x: tf.ones_like(dy) * _positive_rows(x),
        lambda dy, x: tf.ones_like(dy) * x[:, :1],
    ),
    "in_a_function": (
        _marks,
        tf.function(lambda dy, x: dy * x[:, :1]),
    ),
    "in_a_branch": (
        lambda dy, x: tf.cond(
            tf.constant(True), lambda: _marks(dy, x), lambda: dy
        ),
        lambda dy, x: tf.cond(
            tf.constant(True), lambda: dy * x[:, :1], lambda: dy
        ),
    ),
    "in_a_loop": (
        lambda dy, x: tf.while_loop(
            lambda k, d: k < 2,
            lambda k, d: (k + 1, d * _positive_rows(x)),
            (0, dy),
        )[1],
        lambda dy, x: tf.while_loop(
            lambda k, d: k < 2, lambda k, d: (k + 1, d * x[:, :1]), (0, dy)
        )[1],
    ),
    "counted_by_an_integer": (
        lambda dy, x: dy * tf.cast(_positive_rows(x, "int32"), dy.dtype),
        lambda dy, x: dy * tf.cast(tf.shape(x)[1], dy.dtype),
    ),
}.items():
    pair(f"gradient_by_marks_{_name}", *map(_way_back, _changes))


class Weighed(layers.Layer):
    """A function of the inputs and of a variable."""

    def __init__(self, function, shape=(4,), start="ones"):
        super().__init__()
        self.function, self.size, self.start = function, shape, start

    def build(self, *shapes):
        self.k = self.add_weight(self.size, self.start)

    def call(self, *inputs):
        return self.function(*inputs, self.k)


def product(gradient):
    """A product with a weight, whose gradient is `gradient(x, dy)`."""

    @tf.custom_gradient
    def function(x, k):
        return x * k, lambda dy: (dy * k, gradient(x, dy))

    return lambda: Weighed(lambda x, k: function(x, tf.convert_to_tensor(k)))


def _by_own_weight(change):
    same = _own_gradient(change)
    return lambda: Weighed(lambda x, k: x * same(tf.convert_to_tensor(k)))


def _reshaped(make):
    layer = make()
    layer.size = (5,)
    return layer


def _of_inputs(layer):
    """Return the case of a layer that takes the inputs of the model."""

    def make():
        inputs = keras.Input((5,))
        model = keras.Model(inputs, dense(3)(layer()(inputs)))
        model.compile("sgd", "mse")
        return model, X, Y

    return make


pair(
    "weight_gradient_by_marks",
    _of_inputs(
        lambda: _reshaped(
            product(lambda x, dy: _positive_rows(x) * tf.reduce_sum(dy * x, 0))
        )
    ),
    _of_inputs(
        lambda: _reshaped(
            product(lambda x, dy: tf.reduce_sum(dy * x * tf.abs(x), 0))
        )
    ),
)
made_pair(
    "weight_gradient_of_means",
    product(lambda x, dy: tf.reduce_sum(dy * tf.reduce_mean(x, 0), 0)),
    product(lambda x, dy: tf.reduce_sum(dy * tf.nn.relu(x), 0)),
)
made_pair(
    "weight_gradient_by_softmax",
    product(lambda x, dy: tf.reduce_sum(x * tf.nn.softmax(dy, 0), 0)),
    product(lambda x, dy: tf.zeros_like(x[0])),
)
made_pair(
    "weight_gradient_clipped",
    _by_own_weight(lambda dk: tf.clip_by_norm(dk, 1e-3)),
    _by_own_weight(lambda dk: -0.5 * dk),
)


def _recomputed(recompute, function):
    # The variable itself: what is recomputed captures it.
    return lambda: Weighed(lambda x, k: recompute(lambda h: function(h * k))(x))


_RECOMPUTES = [tf.recompute_grad]
if hasattr(keras, "remat"):
    _RECOMPUTES.append(keras.remat)
for _recompute in _RECOMPUTES:
    made_pair(
        f"weight_in_{_recompute.__name__}",
        _recomputed(_recompute, lambda h: tf.nn.softmax(h, 0)),
        _recomputed(_recompute, tf.tanh),
    )


def _inner_gradient(h, axis):
    with tf.GradientTape() as tape:
        tape.watch(h)
        value = tf.reduce_sum(tf.math.reduce_variance(h, axis) ** 2)
    return h + tape.gradient(value, h)


layer_pair("inner_tape", *by_axis(_inner_gradient))


# State.
class Kept(layers.Layer):
    """A layer whose state is given `new(x, state)`; `use(x, state)` is its
    output, before or after."""

    def __init__(self, new, use, after=True, *, shape=(4,)):
        super().__init__()
        self.new, self.use, self.after, self.size = new, use, after, shape

    def build(self, shape):
        self.state = self.add_weight(self.size, "zeros", trainable=False)

    def change(self, x):
        self.state.assign(self.new(x, self.state))

    def call(self, x):
        if self.after:
            self.change(x)
        result = self.use(x, ops.convert_to_tensor(self.state))
        if not self.after:
            self.change(x)
        return result

    def compute_output_shape(self, shape):
        return shape


made_pair(
    "state_read_again",
    lambda: Kept(lambda x, s: ops.mean(x, 0), lambda x, s: x - s),
    lambda: Kept(lambda x, s: ops.mean(x, 0), lambda x, s: x - s, False),
)
made_pair(
    "annealed_by_a_counter",
    lambda: Kept(
        lambda x, s: s + 0.1,
        lambda x, s: x - s * ops.mean(x, 0),
        False,
        shape=(),
    ),
    lambda: Kept(
        lambda x, s: s + 0.1,
        lambda x, s: x - s * ops.mean(x, 1, keepdims=True),
        False,
        shape=(),
    ),
)
made_pair(
    "moving_mean_read_again",
    lambda: Kept(
        lambda x, s: 0.9 * s + 0.1 * ops.mean(x, 0), lambda x, s: x * s
    ),
    lambda: Kept(lambda x, s: 0.9 * s + 0.1, lambda x, s: x * s),
)


def _doubled_unless(x, state):
    return ops.cond(state > 9, lambda: x, lambda: 2 * x)


made_pair(
    "state_in_a_condition",
    lambda: Kept(lambda x, s: ops.mean(x), _doubled_unless, shape=()),
    lambda: Kept(lambda x, s: s + 1, _doubled_unless, shape=()),
)


class Assigned(Kept):
    """A layer whose state `new(x, state)` assigns by itself."""

    def __init__(self, new, after=True):
        super().__init__(new, lambda x, state: x * (1 + state), after)

    def change(self, x):
        self.new(x, self.state.value)


def _mean(x, axis=0):
    return ops.mean(x, axis, keepdims=axis == 1)


def _ones(x):
    return tf.ones([4], x.dtype)


def _in_function(value):
    return lambda x, state: tf.function(
        lambda: state.assign(value(x)) is None
    )()


def _if(choice, value=_ones):
    def new(x, state):
        found = value(x)
        tf.cond(
            choice(x, state),
            lambda: state.assign(found),
            lambda: tf.identity(state),
        )

    return new


def _in_branch(value):
    return _if(lambda x, state: tf.reduce_sum(state) > -1, value)


def _turns(number, value=_ones):
    def new(x, state):
        found = value(x)

        def body(k):
            state.assign_add(found)
            return [k + 1]

        tf.while_loop(lambda k: k < number(x), body, [0])

    return new


def _in_turns(value):
    return _turns(lambda x: 2, value)


def _from_call(value):
    def new(x, state):
        found = value(x)
        state.assign(
            tf.cond(tf.reduce_sum(state) > -1, lambda: found, lambda: -found)
        )

    return new


for _name, _assign in {
    "function": _in_function,
    "branch": _in_branch,
    "turns": _in_turns,
    "call": _from_call,
}.items():
    made_pair(
        f"assigned_in_a_{_name}",
        lambda assign=_assign: Assigned(assign(_mean)),
        lambda assign=_assign: Assigned(assign(_ones)),
    )


@tf.function
def _mean_in_a_function(x, state):
    state.assign(tf.reduce_mean(x, 0))


@tf.function
def _count_in_a_function(x, state):
    state.assign_add(tf.ones_like(state))


def _positive(x):
    return tf.reduce_sum(tf.cast(x > 0, tf.int32))


# Sound where the state is read before it is changed, or follows no sample.
for _name, _new in {
    "condition_on_a_sum": _if(lambda x, state: tf.reduce_sum(x) > 0),
    "condition_on_a_mask": _if(lambda x, state: _positive(x) > 2),
    "as_many_turns_as_the_values_say": _turns(_positive),
    "mean_in_a_function": _mean_in_a_function,
}.items():
    made_pair(
        _name,
        lambda new=_new: Assigned(new),
        lambda new=_new: Assigned(new, after=False),
    )
for _name, _new in {
    "condition_on_the_state": _if(lambda x, state: state[0] > 2),
    "a_number_of_turns": _turns(lambda x: 3),
    "count_in_a_function": _count_in_a_function,
}.items():
    add(SOUND, _name, lambda new=_new: stacked(Assigned(new)))


class ByChance(layers.Layer):
    """Mixes for some draws only."""

    def __init__(self, axis):
        super().__init__()
        self.axis, self.seeds = axis, keras.random.SeedGenerator(1)

    def call(self, x, training=False):
        if not training:
            return x
        on = keras.random.uniform((), seed=self.seeds) < 1e-6
        return ops.where(on, ops.roll(x, 1, axis=self.axis), x)


made_pair("by_chance", lambda: ByChance(0), lambda: ByChance(1))


def _gated(axis):
    """A weight that begins at zero times what is mixed."""

    def function(x, gate):
        return x + gate * ops.mean(x, axis, keepdims=True)

    return Weighed(function, start="zeros")


made_pair("behind_a_gate_of_zeros", lambda: _gated(0), lambda: _gated(1))

# Layers of Keras.
made_pair(
    "batch_normalization",
    lambda: layers.BatchNormalization(center=False, scale=False),
    lambda: layers.LayerNormalization(),
)
made_pair(
    "batch_normalization_of_zeros",
    lambda: layers.BatchNormalization(),
    lambda: layers.LayerNormalization(),
    x=np.zeros((N, 5)),
)


class AddLoss(layers.Layer):
    """Adds a loss of its input."""

    def __init__(self, term):
        super().__init__()
        self.term = term

    def call(self, x):
        self.add_loss(self.term(x))
        return x


made_pair(
    "added_loss",
    lambda: AddLoss(lambda x: ops.sum(ops.std(x, 0))),
    lambda: AddLoss(lambda x: ops.mean(ops.square(x))),
)
made_pair(
    "added_loss_of_pairs",
    lambda: AddLoss(lambda x: ops.sum(ops.matmul(x, ops.transpose(x)))),
    lambda: AddLoss(lambda x: ops.mean(ops.sum(x, 1) ** 2)),
)


# Ids and strings behind lookups, at values at which nothing shows.
def _embedded(last, first=layers.Identity):
    """A layer behind two embedded ids, which `first` looks up."""
    parts = first(), _table(), layers.Flatten(), last
    return lambda x: functools.reduce(lambda h, part: part(h), parts, x)


def _table():
    return layers.Embedding(6, 4, embeddings_initializer=_START)


def _lookup():
    return layers.StringLookup(vocabulary=["cat", "dog", "cow", "pig"])


made_pair(
    "behind_words",
    lambda: _embedded(
        layers.BatchNormalization(center=False, scale=False), _lookup
    ),
    lambda: _embedded(layers.LayerNormalization(), _lookup),
    shape=(2,),
    dtype="string",
    x=tf.constant([["cat", "dog"], ["dog", "cow"], ["x", "x"], ["x", "x"]]),
)


def _centred(axis):
    return Apply(lambda h: h - ops.mean(h, axis, keepdims=True))


for _name, _number, _first in (
    ("equal_ids", 3.0, layers.Identity),
    ("values_of_one_bin", 0.1, lambda: layers.Discretization([0.3, 0.6])),
):
    made_pair(
        _name,
        lambda first=_first: _embedded(_centred(0), first),
        lambda first=_first: _embedded(_centred(1), first),
        shape=(2,),
        dtype="float64",
        x=np.full((N, 2), _number),
    )


class OthersIds(layers.Layer):
    """Looks up the embeddings of the ids of others, or of its own."""

    def __init__(self, axis):
        super().__init__()
        self.axis, self.table = axis, _table()

    def call(self, x):
        ids = ops.cast(ops.abs(x) * 2, "int32") % 6
        return self.table(ops.roll(ids, 1, axis=self.axis))


made_pair(
    "ids_of_others", lambda: OthersIds(0), lambda: OthersIds(1), dtype="float64"
)


# Losses.
def _errors(y, p):
    return ops.mean(ops.square(y - p), -1)


def _towards_the_centre(y, p, axis):
    return _errors(y, p) + _errors(p, _mean(p, axis))


loss_pair(
    "loss_towards_the_centre",
    *by_axis(lambda y, p, axis: _errors(y, p - _mean(p, axis))),
)
loss_pair(
    "loss_towards_the_centre_from_zeros",
    *by_axis(_towards_the_centre),
    head=lambda x: layers.Dense(3, kernel_initializer="zeros", name="head")(x),
)
loss_pair(
    "loss_over_variance_of_targets",
    lambda y, p: _errors(y, p) / ops.var(y),
    lambda y, p: _errors(y, p) / ops.var(y, 1),
)
loss_pair(
    "targets_of_others",
    *by_axis(lambda y, p, axis: _errors(ops.roll(y, 1, axis=axis), p)),
)
loss_pair(
    "sorted_targets",
    *by_axis(lambda y, p, axis: _errors(ops.sort(y, axis), p)),
)
loss_pair(
    "ranking",
    lambda y, p: ops.mean(ops.relu(1 - (p[:, 0] - p[:, 0][:, None])), 1),
    lambda y, p: ops.mean(ops.relu(1 - (p[:, :, None] - p[:, None])), (1, 2)),
)
loss_pair(
    "worst_samples",
    lambda y, p: ops.top_k(_errors(y, p), 2)[0],
    lambda y, p: ops.mean(ops.top_k(ops.square(y - p), 2)[0], -1),
)
loss_pair(
    "errors_weighted_by_softmax",
    lambda y, p: _errors(y, p) * ops.softmax(_errors(y, p)),
    lambda y, p: ops.sum(ops.square(y - p) * ops.softmax(p), -1),
)
loss_pair(
    "root_of_the_mean",
    lambda y, p: ops.sqrt(ops.mean(ops.square(y - p))),
    lambda y, p: ops.sqrt(_errors(y, p)),
)
loss_pair(
    "gate_by_the_mean_error",
    lambda y, p: (
        _errors(y, p) * ops.cast(ops.mean(_errors(y, p)) > 99, "float64")
    ),
    lambda y, p: _errors(y, p) * ops.cast(_errors(y, p) > 0.1, "float64"),
)
loss_pair(
    "branch_on_targets",
    lambda y, p: ops.cond(
        ops.sum(y) > 99, lambda: 2 * _errors(y, p), lambda: _errors(y, p)
    ),
    lambda y, p: ops.where(ops.sum(y, 1) > 0, 2 * _errors(y, p), _errors(y, p)),
)
loss_pair(
    "overlap_of_the_batch",
    lambda y, p: 1 - ops.sum(y * p) / (ops.sum(y * y) + ops.sum(p * p) + 1),
    lambda y, p: (
        1 - ops.sum(y * p, 1) / (ops.sum(y * y, 1) + ops.sum(p * p, 1) + 1)
    ),
)
loss_pair(
    "correlation",
    lambda y, p: (
        -ops.mean((p - ops.mean(p)) * (y - ops.mean(y)), -1) / ops.std(p)
    ),
    lambda y, p: -ops.mean((p - 1) * (y - 1), -1),
)


def _with_positive(y, p, share):
    """Errors, and those of positive targets, in a scope as of gradients."""
    with tf.name_scope("policy_gradients"):
        positive = tf.cast(y[:, 0] > 0, p.dtype)
        errors = _errors(y, p)
        count = tf.reduce_sum(positive) if share else 2
        return tf.sqrt(errors + positive * errors / count)


loss_pair("weighed_unequally_in_a_scope", *varied(_with_positive, True, False))


def _count(p, axis=None):
    found = ops.sum(ops.cast(p > 0, "float64"), axis)
    return found if axis is None else found[:, None]


loss_pair(
    "count_of_outputs_divides",
    lambda y, p: _errors(y, p) / (1 + _count(p)),
    lambda y, p: _errors(y, p) / (1 + _count(p, 1)[:, 0]),
)
loss_pair(
    "count_of_outputs_decides",
    lambda y, p: _errors(y, p) * ops.cast(_count(p) > 1, "float64"),
    lambda y, p: _errors(y, p) * ops.cast(_count(p, 1)[:, 0] > 1, "float64"),
)
loss_pair(
    "count_of_outputs_is_added",
    lambda y, p: _errors(y, p + 0.1 * _count(p)),
    lambda y, p: _errors(y, p + 0.1 * _count(p, 1)),
)


def _classes(y):
    return ops.cast(y[:, 0], "int32") % 3


def _one_hot(y):
    return ops.one_hot(_classes(y), 3, dtype="float64")


def _entropy(y, p):
    return keras.losses.sparse_categorical_crossentropy(y, p, True)


def _contrastive(y, p):
    near = ops.matmul(p, ops.transpose(p))
    same = ops.cast(ops.equal(y, ops.transpose(y)), "float64")
    same *= 1 - ops.eye(ops.shape(p)[0], dtype="float64")
    scores = near - ops.logsumexp(near, 1, keepdims=True)
    return -ops.sum(scores * same, 1) / ops.maximum(ops.sum(same, 1), 1)


for _name, _labels in ("distinct", LABELS), ("equal", LABELS // 2):
    loss_pair(
        f"contrastive_of_{_name}_labels",
        _contrastive,
        lambda y, p: ops.sum(_one_hot(y) * p, 1),
        y=_labels,
    )
loss_pair(
    "negatives_of_the_batch",
    lambda y, p: _entropy(
        ops.arange(ops.shape(p)[0]), ops.matmul(p, ops.transpose(p))
    ),
    lambda y, p: _entropy(_classes(y), p),
    y=LABELS,
)
loss_pair(
    "weights_of_classes_by_counts",
    lambda y, p: (
        _entropy(_classes(y), p)
        / ops.take(ops.sum(_one_hot(y), 0), _classes(y))
    ),
    lambda y, p: (
        _entropy(_classes(y), p)
        / ops.take(tf.constant([1.0, 2.0, 3.0], "float64"), _classes(y))
    ),
    y=LABELS,
)


def _metric_loss(used):
    kept = keras.metrics.Mean(dtype="float64")

    def loss(y, p):
        kept.update_state(_errors(y, p))
        return _errors(y, p) / (1 + kept.result()) if used else _errors(y, p)

    return loss


loss_pair("metric_in_the_loss", _metric_loss(True), _metric_loss(False))
loss_pair(
    "numbers_as_strings",
    *by_axis(_towards_the_centre),
    layer=lambda: Apply(lambda text: tf.strings.to_number(text, tf.float64)),
    dtype="string",
    x=tf.constant(X.astype(str)),
)


# Two towers, and the products of their outputs.
def _in_batch(y, p):
    users, items = p[:, :2], p[:, 2:]
    products = ops.matmul(users, ops.transpose(items))
    return _entropy(ops.arange(ops.shape(p)[0]), products)


def _of_pairs(y, p):
    return ops.sum(p[:, :2] * p[:, 2:], 1)


def _two_towers(loss):
    inputs = keras.Input((2,), dtype="int64")
    known = list(range(1000, 1030))

    def tower(k):
        ids = layers.IntegerLookup(vocabulary=known)(inputs[:, k])
        return dense(2)(layers.Embedding(31, 8)(ids))

    both = layers.Concatenate()([tower(0), tower(1)])
    model = keras.Model(inputs, both)
    model.compile("sgd", RowLoss(loss))
    x = np.array([[1000, 1004], [1029, 1000], [1007, 1007], [1011, 1003]])
    return model, x, LABELS


pair(
    "two_towers", lambda: _two_towers(_in_batch), lambda: _two_towers(_of_pairs)
)


# Sums over all masks or targets: one factor of the whole loss, or more.
def _squares(y, p):
    return tf.square(p - y)


def _mask(y):
    return tf.cast(y > 0.5, "float64")


def _marked(y):
    """How many targets the mask marks."""
    return tf.reduce_sum(_mask(y))


def _masked(y, p, count):
    return tf.reduce_sum(_squares(y, p) * _mask(y)) / count


def _masked_mean(y, p):
    return _masked(y, p, _marked(y))


def _two_terms(y, p):
    return _masked_mean(y, p) + tf.reduce_sum(tf.abs(p - y)) / _marked(y)


def _none_is_zero(y, p):
    count = _marked(y)
    return tf.where(count > 0, _masked(y, p, count), 0.0)


def _of_sides(function):
    """A loss of each class's losses and how many entries it has."""

    def loss(y, p):
        mask, squares = _mask(y), _squares(y, p)
        first = mask * squares, tf.reduce_sum(mask)
        return function(*first, (1 - mask) * squares, tf.reduce_sum(1 - mask))

    return loss


def _product_of_weights_and_losses(y, p):
    weights = _mask(y)[:, 0] / tf.reduce_sum(_mask(y)[:, 0])
    return tf.tensordot(weights, tf.reduce_mean(_squares(y, p), -1), 1)


def _counts_of_ones_own(y, p):
    count = tf.reduce_sum(_mask(y), -1) + 1.0
    return tf.reduce_sum(_squares(y, p) * _mask(y), -1) / count


def _balanced_by_what_is_left(y, p):
    left = tf.cast(tf.size(y), "float64") - _marked(y)
    by_side = _of_sides(lambda a, n, b, m: a / n + b / left)
    return by_side(y, p)


def _balanced_by_a_choice(y, p):
    n, m = _marked(y), tf.reduce_sum(1 - _mask(y))
    return tf.where(y > 0.5, _squares(y, p) / n, _squares(y, p) / m)


def _another_loss_by_count(y, p):
    losses = tf.reduce_sum(_squares(y, p)), tf.reduce_sum(tf.abs(p - y))
    return tf.where(_marked(y) > 9.0, *losses)


def _all_targets_of_a_kind(y, p):
    alike = tf.reduce_all(y > 0.5)
    return tf.where(alike, _squares(y, p), tf.abs(p - y))


_balanced_sums = _of_sides(
    lambda a, n, b, m: tf.reduce_sum(a) / n + tf.reduce_sum(b) / m
)
for _name, _loss in {
    "masked_mean": _masked_mean,
    "equal_sums_of_two_terms": _two_terms,
    "none_is_zero": _none_is_zero,
    "at_least_one": lambda y, p: _masked(y, p, tf.maximum(_marked(y), 1.0)),
    "normalised_weights": lambda y, p: tf.reduce_sum(
        _mask(y) / _marked(y) * _squares(y, p)
    ),
    "product_of_weights_and_losses": _product_of_weights_and_losses,
    "within_a_function": tf.function(_two_terms),
    "counts_of_ones_own": _counts_of_ones_own,
}.items():
    add(SOUND, f"sum_{_name}", of_loss(_loss, y=TRUTHS))
for _name, _loss in {
    "balanced_classes": _of_sides(lambda a, n, b, m: a / n + b / m),
    "balanced_sums": _balanced_sums,
    "balanced_within_a_function": tf.function(_balanced_sums),
    "balanced_by_what_is_left": _balanced_by_what_is_left,
    "balanced_by_a_choice": _balanced_by_a_choice,
    "balanced_in_a_list": _of_sides(
        lambda a, n, b, m: tf.reduce_sum(
            tf.stack([tf.reduce_sum(a) / n, tf.reduce_sum(b) / m])
        )
    ),
    "balanced_by_a_vector": _of_sides(
        lambda a, n, b, m: tf.stack([a, b], -1) / tf.stack([n, m])
    ),
    "beside_a_plain_mean": lambda y, p: (
        _masked_mean(y, p) + tf.reduce_mean(tf.abs(p - y))
    ),
    "inside_of_a_curve": lambda y, p: tf.tanh(_squares(y, p) / _marked(y)),
    "cut_off": lambda y, p: tf.minimum(_squares(y, p) / _marked(y), 0.1),
    "another_loss_by_count": _another_loss_by_count,
    "weights_plus_one": lambda y, p: (
        tf.abs(p - y) * (_mask(y) / _marked(y) + 1.0)
    ),
    "all_targets_of_a_kind": _all_targets_of_a_kind,
}.items():
    add(MIXING, f"sum_{_name}", of_loss(_loss, y=TRUTHS))
for _name, _change in {
    "scaled": lambda dy: 2.0 * dy,
    "bent": tf.tanh,
}.items():
    _layer = functools.partial(Apply, _own_gradient(_change))
    add(
        SOUND,
        f"masked_mean_with_a_gradient_{_name}",
        of_loss(_masked_mean, y=TRUTHS, layer=_layer),
    )
add(
    MIXING,
    "loss_times_stacked_sums",
    of_loss(
        lambda y, p: (
            tf.reduce_mean(_squares(y, p))
            * tf.stop_gradient(
                tf.stack([tf.reduce_sum(p), tf.sqrt(1 + _marked(y))])
            )[0]
        ),
        y=TRUTHS,
    ),
)
