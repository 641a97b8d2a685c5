"""An op differentiated for one sample after the other: exact for any op.

The op's gradient is taken once per sample. Each time the gradient of its
outputs is blank except for this sample. The op itself runs once, for the
batch. So zero times what another sample has left there must be zero: if one
sample is not finite there, no gradient is, and all samples of the batch count
as zero. Noise does not hide that, so such ops are refused where it is added.
"""

import warnings
import weakref

import tensorflow as tf

from keras_pergrad.factors import SampleGradients
from keras_pergrad.factors.sampled import Shared
from keras_pergrad.factors.written_out import (
    HALF,
    inner_products,
    squares,
    squares_by_sample,
    wide,
)
from keras_pergrad.keras_internals.graphs.gradients import op_gradients
from keras_pergrad.keras_internals.tensorflow.settings import is_adding_noise
from keras_pergrad.proof import messages


def one_by_one(use, input_index):
    """Return the factor of a weight input of an op; see `OneByOne`."""
    if is_adding_noise():
        raise ValueError(messages.one_by_one_with_noise(use.op, use.reason))
    if use.loop is None:
        use.loop = _Loop(use)
    return OneByOne(use.loop, input_index)


#: Model → the types of ops of which it was said that they are slow there.
_WARNED = weakref.WeakKeyDictionary()


def warn_once(model, use):
    """Warn that an op is slow, once for each type of op in a model."""
    warned = _WARNED.setdefault(model, set())
    if use.type not in warned:
        warned.add(use.type)
        warnings.warn(messages.slow_op(model, use.op, use.reason), stacklevel=2)


class OneByOne(SampleGradients):
    """Contributions found for one sample after the other.

    The norms hold one sample's gradient at a time, and the weighted sum is a
    single pass. Only `materialize` holds all gradients.
    """

    sampled = ("loop",)

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
        direction = tf.convert_to_tensor(direction)

        def of_sample(gradient):
            return inner_products(gradient[None], direction)[0]

        return self.map_samples(of_sample, [])

    def map_samples(self, of_sample, shape):
        """Return what a function makes of each gradient, (n, *shape).

        Args:
            of_sample: takes the gradient of a sample; what it returns has this
                shape and the type of the gradient, but no half precision.
            shape: a list.
        """
        return self.loop.map_input(self.input_index, of_sample, shape)

    def sum_of_squares(self):
        return self.loop.sum_of_squares(self.input_index)

    def weighted_sum(self, weights):
        return self.loop.weighted_sums(weights)[self.input_index]


class _Loop(Shared):
    """The gradients of all weight inputs of an op.

    The gradient of one sample is that of outputs whose gradients are zero for
    all others.
    """

    sampled = ("keep",)

    def __init__(self, use):
        super().__init__()
        self.use = use
        self.input_indices = list(use.candidate.weights)
        outputs = [
            (t, d)
            for t, d in zip(use.candidate.outputs, use.deltas)
            if d is not None
        ]
        self.outputs = [t for t, _ in outputs]
        _require_independent(use.op, self.outputs)
        specs = [tf.TensorSpec(d.shape, d.dtype) for _, d in outputs]
        function = tf.function(self._gradients, autograph=False)
        self._function = function.get_concrete_function(*specs)
        # A number for each sample, which `select` may blank.
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
        def compute():
            specs = []
            for k in self.input_indices:
                dtype = self.use.dtype(k)
                if name == "squares":
                    dtype = self._wide_type(k)
                specs.append(tf.TensorSpec(shape(k), dtype))
            results = self._map_samples(of_sample, specs)
            return dict(zip(self.input_indices, results))

        return self.once(name, compute)

    def map_input(self, input_index, of_sample, shape):
        """Return what a function makes of each gradient of an input."""
        position = self.input_indices.index(input_index)
        spec = tf.TensorSpec(shape, self._wide_type(input_index))
        return self._map_samples(lambda g: [of_sample(g[position])], [spec])[0]

    def _map_samples(self, of_sample, specs):
        """Return what `of_sample` makes of each sample's gradients, stacked."""
        results = tf.map_fn(
            lambda i: of_sample(self._sample_gradients(i)),
            tf.range(self.use.n),
            fn_output_signature=specs,
        )
        return tf.nest.flatten(results)

    def sum_of_squares(self, input_index):
        """Return the sum of the squared gradients of an input."""
        position = self.input_indices.index(input_index)
        dtype = self._wide_type(input_index)
        zeros = tf.zeros(self._shape(input_index), dtype)

        def add(i, total):
            gradient = self._sample_gradients(i)[position]
            return i + 1, total + squares(gradient[None])

        unfinished = lambda i, _: i < self.use.n  # noqa: E731
        return tf.while_loop(unfinished, add, (0, zeros))[1]

    def _wide_type(self, input_index):
        dtype = self.use.dtype(input_index)
        return tf.float32 if dtype in HALF else dtype

    def weighted_sums(self, weights):
        """Return the sum of the gradients, each times its weight, by input."""
        keep = self.keep
        if weights is not None:
            keep = keep * tf.cast(weights, keep.dtype)
        gradients = self._function(*self._scaled_deltas(keep))
        if self.keep is not self._all_kept:
            # Blank: zero times what is not finite is not zero.
            any_kept = tf.reduce_any(self.keep > 0)
            gradients = [
                tf.where(any_kept, g, tf.zeros_like(g))
                for g in tf.nest.flatten(gradients)
            ]
        return dict(zip(self.input_indices, tf.nest.flatten(gradients)))

    def _shape(self, input_index):
        tensor = self.use.op.inputs[input_index]
        if tensor.dtype == tf.resource:
            return list(self.use.variable(input_index).shape)
        return tensor.shape

    def _sample_gradients(self, i):
        mask = tf.one_hot(i, self.use.n, dtype=self.keep.dtype)
        return self._function(*self._scaled_deltas(mask * self.keep))

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

    def _gradients(self, *deltas):
        """Return the gradients of the inputs, for gradients of the outputs."""
        use = self.use
        gradients = op_gradients(
            self.outputs,
            [use.op.inputs[k] for k in self.input_indices],
            list(deltas),
            graph=use.op.graph,
            # Inputs that come from the same weights are other uses of them.
            ends=use.op.inputs,
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


def _require_independent(op, outputs):
    """Refuse outputs if one of them depends on another.

    The gradient of one output would then contain the gradient of the other,
    which would count twice.
    """
    names = {t.name for t in outputs}
    for output in outputs:
        visited, pending = set(), list(output.op.inputs)
        if output.op is op:
            continue
        while pending:
            tensor = pending.pop()
            if tensor.name in names:
                raise ValueError(messages.entangled(op))
            if tensor.name not in visited and tensor.op is not op:
                visited.add(tensor.name)
                pending += tensor.op.inputs
