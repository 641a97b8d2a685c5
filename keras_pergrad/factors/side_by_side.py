"""Small per-sample gradients of many variables, side by side."""

import tensorflow as tf

from keras_pergrad.factors.full import Full
from keras_pergrad.factors.shared_tensors import integers

#: A sample's gradient with more entries is not copied to save ops.
_SMALL_SIZE = 2**12


class SmallFactors(Full):
    """Contributions of several variables as one vector for each sample.

    A model has a bias or a scale for each kernel. One norm and one sum for all
    of them take a tenth of the ops.
    """

    def __init__(self, factors):
        self._shapes = [f.gradients.shape[1:] for f in factors]
        super().__init__(tf.concat([_flat(f.gradients) for f in factors], 1))

    def split(self, vector):
        """Return a vector of all factors as one tensor a variable."""
        sizes = [shape.num_elements() for shape in self._shapes]
        return [
            part if shape.rank == 1 else tf.reshape(part, shape)
            for part, shape in zip(tf.split(vector, sizes), self._shapes)
        ]


def together(factors):
    """Put small factors side by side; None stays None.

    Args:
        factors: for each variable a `SampleGradients`, as `held` returns it
            (the small ones are `Full`), or None.

    Returns:
        (factors, split_sums): fewer of them, and a function that takes one
        tensor for each of these, and returns one for each variable.

    Example:

    >>> import tensorflow as tf
    >>> from keras_pergrad import factors
    >>> biases = [factors.Full(tf.ones((2, k))) for k in (3, 4)]
    >>> joined, split_sums = factors.together(biases)
    >>> len(joined), joined[0].squared_norms().numpy()
    (1, array([7., 7.], dtype=float32))
    >>> [t.shape[0] for t in split_sums([joined[0].weighted_sum(None)])]
    [3, 4]
    """
    groups = {}
    for k, factor in enumerate(factors):
        if _is_small(factor):
            groups.setdefault(factor.gradients.dtype, []).append(k)
    groups = [indices for indices in groups.values() if len(indices) > 1]
    if not groups:
        return factors, list
    joined = [SmallFactors([factors[k] for k in indices]) for indices in groups]
    joined_indices = {k for indices in groups for k in indices}
    others = [k for k in range(len(factors)) if k not in joined_indices]

    def split_sums(tensors):
        by_variable = dict(zip(others, tensors[len(joined) :]))
        for factor, indices, tensor in zip(joined, groups, tensors):
            by_variable.update(zip(indices, factor.split(tensor)))
        return [by_variable[k] for k in range(len(factors))]

    return [*joined, *(factors[k] for k in others)], split_sums


def _is_small(factor):
    if type(factor) is not Full:
        return False
    size = factor.gradients.shape[1:].num_elements()
    return size is not None and size <= _SMALL_SIZE


def _flat(tensor):
    if tensor.shape.rank == 2:
        return tensor
    return tf.reshape(tensor, integers(-1, tensor.shape[1:].num_elements()))
