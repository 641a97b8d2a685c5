"""State beside Keras's variables: parts, tables, stages, queues, files."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.privacy.model_check import find_problems
from tests.models.making import compiled, net, normal
from tests.privacy.tiny import private

layers, raw = keras.layers, tf.raw_ops
X, Y = normal(4, 5), np.ones((4, 3), "float32")


class Keeps(layers.Layer):
    """Calls a function of its inputs, and of what `make` gave it to keep."""

    def __init__(self, function, make=None):
        super().__init__()
        self.function = function
        self.kept = [] if make is None else [make()]

    def call(self, x):
        return tf.ensure_shape(self.function(x, *self.kept), x.shape)

    def compute_output_shape(self, shape):
        return shape


def _training():
    return private(samples=4, batch_size=4)


def _model(case):
    model = net(layers.Dense(3), Keeps(*case))
    return compiled(model, _training().gradient_mode)


def _norms(case):
    return kpg.per_sample_norms(_model(case), X, Y)


def _mean(x):
    return tf.reduce_mean(tf.stop_gradient(x), 0)


def _keys(x):
    return tf.cast(tf.math.round(tf.stop_gradient(x[:, 0])), tf.int64)


def _variable():
    return tf.Variable(tf.zeros([2, 3]), trainable=False)


def _of_any_shape():
    return tf.Variable(
        tf.zeros([3]), shape=tf.TensorShape(None), trainable=False
    )


def _table():
    return tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1)


def _two_handles():
    variable = tf.Variable(tf.zeros([3]), trainable=False)
    return variable, tf.identity(variable.handle)


def _two_variables():
    return tuple(tf.Variable(tf.zeros([3]), trainable=False) for _ in "ab")


def _two_by_name():
    handles = [
        raw.VarHandleOp(dtype=tf.float32, shape=[3], shared_name="two")
        for _ in range(2)
    ]
    raw.AssignVariableOp(resource=handles[0], value=tf.zeros([3]))
    return handles


def _read(handle):
    return raw.ReadVariableOp(resource=handle, dtype=tf.float32)


def _other_handle(of_samples):
    def function(x, kept):
        value = _mean(x) if of_samples else tf.ones([3])
        first, second = kept
        if isinstance(first, tf.Variable):
            first.assign(value)
        else:
            raw.AssignVariableOp(resource=first, value=value)
        return x * (1 + _read(second))

    return function


def _slice(value):
    def function(x, kept):
        kept[0].assign(value(x))
        return x * (1 + kept.read_value()[0])

    return function


def _scatter(method, value):
    def function(x, kept):
        getattr(kept, method)(tf.IndexedSlices(value(x)[None], [0]))
        return x * (1 + kept.read_value()[0])

    return function


def _counts(x, kept):
    ids = tf.cast(_keys(x) > 0, tf.int32)
    kept.scatter_add(tf.IndexedSlices(tf.ones([tf.shape(x)[0], 3]), ids))
    return x * (1 + kept.read_value()[0])


def _scattered_by_op(x, kept):
    raw.ResourceScatterMul(
        resource=kept.handle, indices=[0], updates=1 + _mean(x)[None]
    )
    return x * (1 + kept.read_value()[0])


def _size_of(value):
    def function(x, kept):
        kept.assign(value(x))
        return x * tf.cast(tf.reduce_prod(tf.shape(kept)), x.dtype)

    return function


def _size_of_table(keys):
    def function(x, kept):
        kept.insert(keys(x), keys(x))
        return x * tf.cast(kept.size(), x.dtype)

    return function


def _removed(x, kept):
    kept.remove(_keys(x))
    return x * tf.cast(kept.size(), x.dtype)


def _imported(x, kept):
    raw.LookupTableImportV2(
        table_handle=kept.resource_handle, keys=_keys(x), values=_keys(x)
    )
    return x * tf.cast(kept.export()[0][0], x.dtype)


def _after(op, result):
    with tf.control_dependencies([op]):
        return tf.identity(result())


def _staged(x):
    put = raw.Stage(values=[_mean(x)], shared_name="stage")

    def get():
        return raw.Unstage(dtypes=[tf.float32], shared_name="stage")[0]

    return x * tf.reshape(_after(put, get), [3])


def _staged_size(x):
    put = raw.Stage(values=[_mean(x)], shared_name="size")
    size = _after(put, lambda: raw.StageSize(dtypes=[tf.float32]))
    return x * tf.cast(size, x.dtype)


def _staged_in_a_function(x):
    @tf.function(autograph=False)
    def put(value):
        def stage():
            raw.Stage(values=[value], shared_name="inside")
            return 0

        tf.cond(tf.constant(True), stage, lambda: 0)

    put(_mean(x))
    return x


def _staged_map(x):
    key = tf.constant(0, tf.int64)
    raw.MapStage(key=key, indices=[0], values=[_mean(x)], dtypes=[tf.float32])
    return x


def _staged_backward(x):
    @tf.custom_gradient
    def same(h):
        def gradient(dy):
            raw.Stage(values=[tf.reduce_mean(dy, 0)], shared_name="back")
            return dy

        return tf.identity(h), gradient

    return same(x)


def _queued(x, kept):
    kept.enqueue(_mean(x))
    return x * (1 + tf.reshape(kept.dequeue(), [3]))


def _in_the_queue(x, kept):
    kept.enqueue(_mean(x))
    return x * tf.cast(kept.size(), x.dtype)


def _written(x):
    text = tf.strings.as_string(tf.reduce_sum(_mean(x)))
    put = tf.io.write_file("kept.txt", text)
    return x * tf.strings.to_number(
        _after(put, lambda: tf.io.read_file("kept.txt"))
    )


def _printed_into_a_file(x):
    tf.print(_mean(x), output_stream="file://printed.txt")
    return x


def _read_only(x):
    return x * tf.strings.to_number(tf.io.read_file("kept.txt"))


def _by_python(x):
    tf.py_function(lambda h: None, [x], [])
    return x


def _draws_by_others(x, kept):
    tf.cond(
        tf.reduce_sum(x) > 0,
        lambda: kept.uniform([3]),
        lambda: tf.zeros([3]),
    )
    return x * kept.uniform([3])


def _skips_by_others(x, kept):
    kept.skip(tf.cast(tf.reduce_sum(tf.abs(x)), tf.uint64))
    return x * kept.uniform([3])


def _reset_by_sum(x, kept):
    seed = tf.cast(1000 * tf.reduce_sum(x), tf.int64)
    kept.reset(tf.stack([seed, 0 * seed, 0 * seed]))
    return x * kept.uniform([3])


def _reset_by_count(x, kept):
    kept.reset_from_seed(tf.reduce_sum(tf.cast(x > 0, tf.int64)))
    return x * kept.normal([3])


def _reset_to(value, draw):
    """Return a layer that draws from a state that is set to a value."""

    def function(x, kept):
        kept.reset_from_seed(value(x))
        return x * draw(kept, tf.cast(1 + tf.abs(x), tf.float32))

    return function


def _drawn_by_turns(x, kept):
    def turn(row):
        return tf.cond(row[0] > 0, lambda: row * kept.uniform([3]), lambda: row)

    return tf.map_fn(turn, x)


def _by_a_chosen_handle(read):
    """Return a layer that sets one variable and reads by a handle."""

    def function(x, kept):
        first, second = kept
        first.assign(_mean(x))
        handle = read(first.handle, second.handle)
        value = raw.ReadVariableOp(resource=handle, dtype=tf.float32)
        return x * tf.reshape(value, [3])

    return function


def _written_by_a_chosen_handle(x, kept):
    handle = _swapped(*(v.handle for v in kept))
    raw.AssignVariableOp(resource=handle, value=_mean(x))
    return x * kept[0]


def _swapped(first, second):
    return tf.while_loop(
        lambda k, a, b: k < 1,
        lambda k, a, b: (k + 1, b, a),
        (0, second, first),
    )[1]


def _optional(x):
    kept = raw.OptionalFromValue(components=[tf.ones([3]), _mean(x)])
    return (
        x
        * raw.OptionalGetValue(
            optional=kept,
            output_types=[tf.float32] * 2,
            output_shapes=[[3], [3]],
        )[1]
    )


def _barrier(x):
    barrier = raw.Barrier(component_types=[tf.float32], shared_name="b")
    raw.BarrierInsertMany(
        handle=barrier, keys=["a"], values=_mean(x)[None], component_index=0
    )
    return x


def _accumulated(x):
    kept = raw.ResourceConditionalAccumulator(
        dtype=tf.float32, shape=[3], shared_name="sum"
    )
    raw.ResourceAccumulatorApplyGradient(
        handle=kept, local_step=tf.constant(0, tf.int64), gradient=_mean(x)
    )
    return x


def _optimizer_step(x, kept):
    raw.ResourceApplyGradientDescent(
        var=kept.handle, alpha=0.1, delta=tf.stack([_mean(x)] * 2)
    )
    return x * (1 + kept.read_value()[0])


def _made_inside(x):
    one, two = (
        raw.VarHandleOp(dtype=tf.float32, shape=[3], shared_name="in")
        for _ in range(2)
    )
    raw.AssignVariableOp(resource=one, value=_mean(x))
    return x * _read(two)


def _old_array(x):
    handle, flow = raw.TensorArrayV3(size=1, dtype=tf.float32)
    flow = raw.TensorArrayWriteV3(
        handle=handle, index=0, value=_mean(x), flow_in=flow
    )
    read = raw.TensorArrayReadV3(
        handle=handle, index=0, flow_in=flow, dtype=tf.float32
    )
    return x * read


def _queue():
    return tf.queue.FIFOQueue(9, [tf.float32], [[3]])


def _generator():
    return tf.random.Generator.from_seed(1)


def _ones(x):
    del x
    return tf.ones([3])


KEPT = {
    "slice": (_slice(_mean), _variable),
    "scatter": (_scatter("scatter_update", _mean), _variable),
    "scatter_max": (_scatter("scatter_max", _mean), _variable),
    "counts": (_counts, _variable),
    "scattered by an op": (_scattered_by_op, _variable),
    "another handle": (_other_handle(True), _two_handles),
    "another handle of one name": (_other_handle(True), _two_by_name),
    "size of a variable": (
        _size_of(lambda x: tf.boolean_mask(x, x[:, 0] > 0)),
        _of_any_shape,
    ),
    "size of a table": (_size_of_table(_keys), _table),
    "removed keys": (_removed, _table),
    "imported keys": (_imported, _table),
    "a draw that others advance": (_draws_by_others, _generator),
    "kept with another tensor": (_optional,),
    "read by a chosen handle": (
        _by_a_chosen_handle(
            lambda first, second: tf.cond(
                tf.constant(True), lambda: first, lambda: second
            )
        ),
        _two_variables,
    ),
    "written by a chosen handle": (_written_by_a_chosen_handle, _two_variables),
    "a draw that earlier samples advance": (_drawn_by_turns, _generator),
    "a generator reset by a sum": (_reset_by_sum, _generator),
    "a generator reset by a count": (_reset_by_count, _generator),
    "whole draws": (
        _reset_to(
            lambda x: tf.reduce_sum(tf.cast(x > 0, tf.int64)),
            lambda kept, x: tf.cast(kept.uniform([3], 0, 9, tf.int32), x.dtype),
        ),
        _generator,
    ),
    "binomial draws": (
        _reset_to(
            lambda x: tf.reduce_sum(tf.cast(x > 0, tf.int64)),
            lambda kept, x: tf.cast(kept.binomial([3], [9.0], [0.5]), x.dtype),
        ),
        _generator,
    ),
    "seeds made by a generator": (
        _reset_to(
            lambda x: tf.reduce_sum(tf.cast(x > 0, tf.int64)),
            lambda kept, x: tf.random.stateless_uniform(
                [3], kept.make_seeds(1)[:, 0]
            ),
        ),
        _generator,
    ),
}
UNKNOWN = {
    "Stage": (_staged,),
    "Stage, and its size": (_staged_size,),
    "Stage in a function": (_staged_in_a_function,),
    "Stage backward": (_staged_backward,),
    "MapStage": (_staged_map,),
    "QueueEnqueueV2": (_queued, _queue),
    "QueueEnqueueV2, and its size": (_in_the_queue, _queue),
    "WriteFile": (_written,),
    "ReadFile": (_read_only,),
    "PrintV2": (_printed_into_a_file,),
    "EagerPyFunc": (_by_python,),
    "RngReadAndSkip": (_skips_by_others, _generator),
    "Barrier": (_barrier,),
    "ResourceConditionalAccumulator": (_accumulated,),
    "ResourceApplyGradientDescent": (_optimizer_step, _variable),
    "VarHandleOp": (_made_inside,),
    "TensorArrayV3": (_old_array,),
}


def _printed(x):
    tf.cond(x[0, 0] > 99, lambda: tf.print(x[0]), lambda: tf.no_op())
    return x


def _asserted(x):
    tf.debugging.assert_less(tf.reduce_max(x), 1e9)
    return tf.debugging.check_numerics(x, "no number")


def _summarised(x, kept):
    with kept.as_default():
        tf.summary.scalar("mean", tf.reduce_mean(x), step=0)
    return x


def _drawn(x, kept):
    return x * kept.uniform([3]) + kept.normal([3])


def _looked_up(x, kept):
    found = kept.lookup(tf.cast(tf.math.round(x), tf.int64))
    return x * tf.cast(found + kept.size(), x.dtype)


SOUND = {
    "slice": (_slice(_ones), _variable),
    "scatter": (_scatter("scatter_update", _ones), _variable),
    "another handle": (_other_handle(False), _two_handles),
    "size of a variable": (_size_of(lambda x: tf.ones([5])), _of_any_shape),
    "size of a table": (
        _size_of_table(lambda x: tf.constant([3], tf.int64)),
        _table,
    ),
    "printed": (_printed,),
    "asserted": (_asserted,),
    "summarised": (
        _summarised,
        lambda: tf.summary.create_noop_writer(),
    ),
    "drawn": (_drawn, _generator),
    "drawn after a reset": (
        _reset_to(
            lambda x: tf.constant(5, tf.int64),
            lambda kept, x: kept.uniform([3]),
        ),
        _generator,
    ),
    "looked up": (_looked_up, _table),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_is_kept_and_read_again_is_refused(name):
    with pytest.raises(ValueError, match="mixes the samples"):
        _norms(KEPT[name])


@pytest.mark.parametrize("name", UNKNOWN)
def test_ops_whose_state_no_type_follows_are_refused_by_name(name):
    op = name.split()[0].rstrip(",")
    with pytest.raises(ValueError, match=f"has the op {op} .*may keep state"):
        _norms(UNKNOWN[name])


@pytest.mark.parametrize("name", SOUND)
def test_state_of_no_sample_is_served(name):
    assert np.isfinite(_norms(SOUND[name])).all()


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (KEPT["slice"], "assigns"),
        (KEPT["counts"], "assigns"),
        (KEPT["size of a table"], "assigns"),
        (UNKNOWN["Stage"], "has the op Stage"),
        (UNKNOWN["WriteFile"], "has the op WriteFile"),
        (UNKNOWN["EagerPyFunc"], "has the op EagerPyFunc"),
        (SOUND["printed"], None),
    ],
)
def test_private_training_refuses_what_is_kept(case, said):
    found = find_problems(_model(case), _training().batches(X, Y))
    assert bool(found) == (said is not None)
    assert said is None or any(said in text for text in found)
