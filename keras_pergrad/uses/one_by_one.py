"""An op differentiated for one sample after the other: exact for any op.

The op's gradient is taken once per sample. Each time the gradient of its
outputs is blank except for this sample. The op itself runs once, for the
batch.
"""

import functools

import tensorflow as tf

from keras_pergrad.factors import SampleGradients
from keras_pergrad.factors.base import (
    HALF,
    inner_products,
    squares,
    squares_by_sample,
    wide,
)
from keras_pergrad.keras_internals.graphs.gradients import (
    copy_op,
    op_gradients,
    trace_noinline,
)
from keras_pergrad.keras_internals.tensorflow.settings import (
    in_xla,
    is_adding_noise,
)
from keras_pergrad.proof import messages

# Other samples in the rows of what a gradient holds of the forward pass.
#
# A gradient of zero does not make a sample vanish that is not finite: zero
# times NaN is NaN. With another sample in its row it does.


class RowExchange:
    """Tensors of the step, with chosen samples in their rows.

    Lists that loops have kept are made anew, by running the loop once more.

    Args:
        use: the `Use` whose gradient holds the tensors.
        sample_indices: the sample for each row, (n,).
    """

    def __init__(self, use, sample_indices):
        self._use, self._sample_indices = use, sample_indices
        self._results = {}

    def all(self, tensors):
        """Return the tensors with the exchanged rows, or None.

        None: of one tensor it is not known where its samples are, or an op
        that made it draws or assigns.
        """
        results = [self._exchange(t) for t in tensors]
        return None if any(t is None for t in results) else results

    def _exchange(self, tensor):
        # The tensor is kept alive: else a new one could get its id.
        if id(tensor) not in self._results:
            self._results[id(tensor)] = tensor, self._compute(tensor)
        return self._results[id(tensor)][1]

    def _compute(self, tensor):
        if not tf.is_symbolic_tensor(tensor):
            # A value from outside of the step.
            return tensor
        has_samples = self._use.use_types.samples_in(tensor)
        if has_samples and tensor.dtype != tf.variant:
            layout = self._use.use_types.layout_in(tensor)
            if layout is None:
                return None
            return layout.take_samples(
                tensor, self._sample_indices, self._use.n
            )
        if has_samples is False or tensor.dtype == tf.resource:
            return tensor
        # A list, or what the gradient has added to the forward pass.
        inputs = list(tensor.op.inputs)
        exchanged_inputs = self.all(inputs)
        if exchanged_inputs is None:
            return None
        if all(a is b for a, b in zip(inputs, exchanged_inputs)):
            return tensor
        outputs = copy_op(tensor.op, exchanged_inputs)
        if outputs is None:
            return None
        for output, copy in zip(tensor.op.outputs, outputs):
            self._results[id(output)] = output, copy
        return outputs[tensor.value_index]


# An op differentiated for one sample after the other: exact for any op.
#
# The op's gradient is taken once per sample. Each time the gradient of its
# outputs is blank except for this sample. The op itself runs once, for the
# batch.


def one_by_one(use, input_index):
    """Return the factor of a weight input of an op; see `OneByOne`."""
    if use.loop is None:
        use.loop = _Loop(use)
    return OneByOne(use.loop, input_index)


class OneByOne(SampleGradients):
    """Contributions found for one sample after the other.

    The norms hold one sample's gradient at a time, and the weighted sum is a
    single pass. Only `materialize` holds all gradients.
    """

    def __init__(self, loop, input_index):
        self.loop, self.input_index = loop, input_index

    def chosen_method(self):
        return "one by one"

    def sum_method(self):
        return "backward pass"

    def squared_norms(self):
        return self.loop.squares()[self.input_index]

    def materialize(self):
        return self.loop.all()[self.input_index]

    def dot(self, direction):
        return self.loop.dot(self.input_index, direction)

    def sum_of_squares(self):
        return self.loop.sum_of_squares(self.input_index)

    def project(self, projection):
        return self.loop.project(self.input_index, projection)

    def weighted_sum(self, weights):
        return self.loop.weighted_sums(weights)[self.input_index]

    def holders(self):
        return [self.loop]


class _Loop:
    """The gradients of all weight inputs of an op.

    The gradient of one sample is that of outputs whose gradients are zero for
    all others. Where one of these is not finite, that is not enough: then the
    sample, or one that is kept, stands in their rows, too.
    """

    rows = ("keep",)

    def __init__(self, use):
        self.use = use
        self.input_indices = list(use.candidate.weights)
        self._results = {}
        outputs = [
            (t, d)
            for t, d in zip(use.candidate.outputs, use.deltas)
            if d is not None
        ]
        self.outputs = [t for t, _ in outputs]
        _require_independent(use.op, self.outputs)
        self._specs = [tf.TensorSpec(d.shape, d.dtype) for _, d in outputs]
        function = tf.function(self._gradients, autograph=False)
        self._function = function.get_concrete_function(*self._specs)
        # A factor for each sample, which `select` may blank.
        self.keep = self._all_kept = tf.ones(
            [use.n], use.dtype(self.input_indices[0]).real_dtype
        )

    def squares(self):
        """Return the squared norms, (n,), by input."""

        def of_sample(gradients):
            return [
                squares_by_sample(tf.reshape(wide(g), [1, -1]))[0]
                for g in gradients
            ]

        return self._cached("squares", of_sample, lambda _: [])

    def all(self):
        """Return all gradients, (n, *shape), by input."""
        return self._cached("all", lambda gradients: gradients, self._shape)

    def _cached(self, name, of_sample, shape):
        if name not in self._results:
            specs = []
            for k in self.input_indices:
                dtype = self.use.dtype(k)
                if name == "squares":
                    dtype = self._wide_type(k)
                specs.append(tf.TensorSpec(shape(k), dtype))
            results = self._map_samples(of_sample, specs)
            self._results[name] = dict(zip(self.input_indices, results))
        return self._results[name]

    def dot(self, input_index, direction):
        """Return the inner product of each gradient of an input, (n,)."""
        direction = tf.convert_to_tensor(direction)
        position = self.input_indices.index(input_index)

        def of_sample(gradients):
            return [inner_products(gradients[position][None], direction)[0]]

        spec = tf.TensorSpec([], self._wide_type(input_index))
        return self._map_samples(of_sample, [spec])[0]

    def project(self, input_index, projection):
        """Return the projection of each gradient of an input, (n, size)."""
        position = self.input_indices.index(input_index)

        def of_sample(gradients):
            return [projection.of_gradients(gradients[position][None])[0]]

        dtype = self._wide_type(input_index)
        spec = tf.TensorSpec([projection.size], dtype)
        return self._map_samples(of_sample, [spec])[0]

    def _map_samples(self, of_sample, specs):
        """Return what `of_sample` makes of each sample's gradients, stacked."""

        def compute(exchange):
            return tf.map_fn(
                lambda i: of_sample(self._sample_gradients(i, exchange)),
                tf.range(self.use.n),
                fn_output_signature=specs,
            )

        return self._exchange_unless_finite(compute)

    def _exchange_unless_finite(self, compute):
        """Return `compute(False)`, or `compute(True)` if that is not finite.

        The argument says whether rows of other samples are exchanged.
        """
        # The function is built here: built in a branch, it would capture
        # tensors of the branch's graph.
        results, _ = compute(False), self._exchanged_gradients
        finite = [tf.reduce_all(tf.math.is_finite(_real(t))) for t in results]
        return tf.nest.flatten(
            tf.cond(
                tf.reduce_all(finite),
                lambda: results,
                lambda: compute(True),
            )
        )

    def sum_of_squares(self, input_index):
        """Return the sum of the squared gradients of an input."""
        position = self.input_indices.index(input_index)
        dtype = self._wide_type(input_index)
        zeros = tf.zeros(self._shape(input_index), dtype)

        def compute(exchange):
            def add(i, total):
                gradient = self._sample_gradients(i, exchange)[position]
                return i + 1, total + squares(gradient[None])

            unfinished = lambda i, _: i < self.use.n  # noqa: E731
            return [tf.while_loop(unfinished, add, (0, zeros))[1]]

        return self._exchange_unless_finite(compute)[0]

    def _wide_type(self, input_index):
        dtype = self.use.dtype(input_index)
        return tf.float32 if dtype in HALF else dtype

    def weighted_sums(self, weights):
        """Return the sum of the gradients, each times its weight, by input."""
        keep = self.keep
        if weights is not None:
            keep = keep * tf.cast(weights, keep.dtype)
        deltas = self._scaled_deltas(keep)

        if self.keep is self._all_kept:
            gradients = self._function(*deltas)
        else:
            indices, exchanged_gradients = (
                tf.range(self.use.n),
                self._exchanged_gradients,
            )
            sample_indices = tf.where(
                self.keep > 0, indices, self._first_kept()
            )
            gradients = tf.cond(
                tf.reduce_all(self.keep > 0),
                lambda: self._function(*deltas),
                lambda: self._zeros_if_none_kept(
                    exchanged_gradients(sample_indices, *deltas)
                ),
            )
        return dict(zip(self.input_indices, tf.nest.flatten(gradients)))

    def _zeros_if_none_kept(self, gradients):
        """Return gradients, or zeros where no sample is kept."""
        any_kept = tf.reduce_any(self.keep > 0)
        return [tf.where(any_kept, g, tf.zeros_like(g)) for g in gradients]

    def _shape(self, input_index):
        tensor = self.use.op.inputs[input_index]
        if tensor.dtype == tf.resource:
            k = self.use.variables_in(input_index)[0]
            return list(self.use.variables[k].shape)
        return tensor.shape

    def _sample_gradients(self, i, exchange):
        mask = tf.one_hot(i, self.use.n, dtype=self.keep.dtype)
        deltas = self._scaled_deltas(mask * self.keep)
        if not exchange:
            return self._function(*deltas)
        sample_index = tf.where(self.keep[i] > 0, i, self._first_kept())
        sample_indices = tf.fill([self.use.n], sample_index)
        return self._zeros_if_none_kept(
            self._exchanged_gradients(sample_indices, *deltas)
        )

    def _first_kept(self):
        return tf.argmax(self.keep, output_type=tf.int32)

    def _scaled_deltas(self, scales):
        """Return the outputs' gradients, times a number for each sample."""
        use = self.use
        # Zero times NaN is zero here, so that a blank sample is blank.
        return [
            tf.math.multiply_no_nan(
                delta, use.layout_of(k).spread(scales, delta, use.n)
            )
            for k, delta in enumerate(use.deltas)
            if delta is not None
        ]

    @functools.cached_property
    def _exchanged_gradients(self):
        """A function of sample indices and the outputs' gradients.

        It gives the gradients of the inputs with these samples in the rows of
        what the gradient holds of the forward pass.
        """
        sample_indices = tf.TensorSpec([None], tf.int32)
        # Called twice, and it seldom runs.
        return trace_noinline(self._run_exchanged, sample_indices, *self._specs)

    def _run_exchanged(self, sample_indices, *deltas):
        function = self._function
        captured = list(function.captured_inputs)
        exchanged = RowExchange(self.use, sample_indices).all(captured)
        if exchanged is None:
            return self._not_finite_gradients(deltas)
        function.set_external_captures(exchanged)
        try:
            return function(*deltas)
        finally:
            function.set_external_captures(captured)

    def _not_finite_gradients(self, deltas):
        """Return gradients that are not finite; XLA drops the assertion."""
        if is_adding_noise() and in_xla():
            # All samples would be left out because of one, which noise cannot
            # hide.
            raise ValueError(messages.not_finite_without_check(self.use.op))
        check = tf.debugging.Assert(False, [messages.not_finite(self.use.op)])
        with tf.control_dependencies([] if check is None else [check]):
            return [tf.identity(g) for g in self._function(*deltas)]

    def _gradients(self, *deltas):
        """Return the gradients of the inputs, for gradients of the outputs."""
        use = self.use
        gradients = op_gradients(
            self.outputs,
            [use.op.inputs[k] for k in self.input_indices],
            list(deltas),
            use.op.graph,
            # Inputs that come from the same weights are other uses of them.
            use.op.inputs,
        )
        result = []
        for k, gradient in zip(self.input_indices, gradients):
            dtype = use.dtype(k)
            if gradient is None:
                gradient = tf.zeros(self._shape(k), dtype)
            gradient = tf.cast(tf.convert_to_tensor(gradient), dtype)
            if use.scale is not None:
                gradient /= tf.cast(use.scale, dtype)
            result.append(gradient)
        return result


def _real(tensor):
    return tf.abs(tensor) if tensor.dtype.is_complex else tensor


def _require_independent(op, outputs):
    """Refuse outputs if one of them depends on another.

    The gradient of one output would then contain the gradient of the other,
    which would count twice.
    """
    output_ids = {id(t) for t in outputs}
    for output in outputs:
        visited, pending = set(), list(output.op.inputs)
        if output.op is op:
            continue
        while pending:
            tensor = pending.pop()
            if id(tensor) in output_ids:
                raise ValueError(messages.entangled(op))
            if id(tensor) not in visited and tensor.op is not op:
                visited.add(id(tensor))
                pending += tensor.op.inputs
