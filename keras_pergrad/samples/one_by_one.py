"""An op differentiated for one sample after the other: exact for any op.

The op's gradient is taken once per sample. Each time the gradient of its
outputs is blank except for this sample. The op itself runs once, for the
batch.
"""

import tensorflow as tf

from keras_pergrad.factors import SampleGradients
from keras_pergrad.factors.sample_gradients import (
    HALF,
    inner_products,
    squares,
    squares_by_sample,
    wide,
)
from keras_pergrad.keras_internals.gradient_helpers import op_gradients
from keras_pergrad.samples import messages


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
        return self.loop.weighted(weights)[self.input_index]

    def holders(self):
        return [self.loop]


class _Loop:
    """The gradients of all weight inputs of an op."""

    rows = ("keep",)

    def __init__(self, use):
        self.use = use
        self.input_indices = [k for k in use.candidate.weights if use.alive(k)]
        self._results = {}
        self.outputs = [
            t
            for t, d in zip(use.candidate.outputs, use.deltas)
            if d is not None
        ]
        _require_apart(use.op, self.outputs)
        # A factor for each sample, which `select` may blank.
        self.keep = tf.ones(
            [use.n], use.dtype(self.input_indices[0]).real_dtype
        )

    def squares(self):
        """Return the squared norms, (n,), by input."""

        def one(i):
            gradients = self._of_sample(i)
            return [
                squares_by_sample(tf.reshape(wide(g), [1, -1]))[0]
                for g in gradients
            ]

        return self._over_samples("squares", one, lambda _: [])

    def all(self):
        """Return all gradients, (n, *shape), by input."""
        return self._over_samples("all", self._of_sample, self._shape)

    def _over_samples(self, name, one, shape):
        if name not in self._results:
            specs = []
            for k in self.input_indices:
                dtype = self.use.dtype(k)
                if name == "squares":
                    dtype = self._wide_type(k)
                specs.append(tf.TensorSpec(shape(k), dtype))
            results = tf.map_fn(
                one, tf.range(self.use.n), fn_output_signature=specs
            )
            self._results[name] = dict(zip(self.input_indices, results))
        return self._results[name]

    def dot(self, input_index, direction):
        """Return the inner product of each gradient of an input, (n,)."""
        direction = tf.convert_to_tensor(direction)
        place = self.input_indices.index(input_index)

        def one(i):
            return inner_products(self._of_sample(i)[place][None], direction)[0]

        spec = tf.TensorSpec([], self._wide_type(input_index))
        return tf.map_fn(one, tf.range(self.use.n), fn_output_signature=spec)

    def project(self, input_index, projection):
        """Return the projection of each gradient of an input, (n, size)."""
        place = self.input_indices.index(input_index)

        def one(i):
            gradient = self._of_sample(i)[place]
            return projection.of_gradients(gradient[None])[0]

        dtype = self._wide_type(input_index)
        spec = tf.TensorSpec([projection.size], dtype)
        return tf.map_fn(one, tf.range(self.use.n), fn_output_signature=spec)

    def sum_of_squares(self, input_index):
        """Return the sum of the squared gradients of an input."""
        place = self.input_indices.index(input_index)

        def add(i, total):
            return i + 1, total + squares(self._of_sample(i)[place][None])

        dtype = self._wide_type(input_index)
        nothing = tf.zeros(self._shape(input_index), dtype)
        return tf.while_loop(lambda i, _: i < self.use.n, add, (0, nothing))[1]

    def _wide_type(self, input_index):
        dtype = self.use.dtype(input_index)
        return tf.float32 if dtype in HALF else dtype

    def weighted(self, weights):
        """Return the sum of the gradients, each times its weight, by input."""
        use = self.use
        keep = self.keep
        if weights is not None:
            keep = keep * tf.cast(weights, keep.dtype)
        masked = []
        for k, delta in enumerate(use.deltas):
            if delta is None:
                continue
            layout = use.layout_of(k)
            masked.append(
                tf.math.multiply_no_nan(
                    delta, layout.spread(keep, delta, use.n)
                )
            )
        return dict(zip(self.input_indices, self._gradients(masked)))

    def _shape(self, input_index):
        tensor = self.use.op.inputs[input_index]
        if tensor.dtype == tf.resource:
            k = self.use.variables_in(input_index)[0]
            return list(self.use.variables[k].shape)
        return tensor.shape

    def _of_sample(self, i):
        use = self.use
        one = tf.one_hot(i, use.n, dtype=self.keep.dtype) * self.keep
        masked = [
            tf.math.multiply_no_nan(
                delta, use.layout_of(k).spread(one, delta, use.n)
            )
            for k, delta in enumerate(use.deltas)
            if delta is not None
        ]
        return self._gradients(masked)

    def _gradients(self, deltas):
        """Return the gradients of the inputs, for gradients of the outputs."""
        use = self.use
        gradients = op_gradients(
            self.outputs,
            [use.op.inputs[k] for k in self.input_indices],
            deltas,
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


def _require_apart(op, outputs):
    """Refuse outputs if one of them depends on another.

    The gradient of one output would then contain the gradient of the other,
    which would count twice.
    """
    ends = {id(t) for t in outputs}
    for output in outputs:
        seen, waiting = set(), list(output.op.inputs)
        if output.op is op:
            continue
        while waiting:
            tensor = waiting.pop()
            if id(tensor) in ends:
                raise ValueError(messages.entangled(op))
            if id(tensor) not in seen and tensor.op is not op:
                seen.add(id(tensor))
                waiting += tensor.op.inputs
