"""Parts of weights: slices of them, one gate's kernel or bias.

The gradient of a part has zeros around it. A loop that is written out in
Python takes the same part in each of its steps. Such uses are joined before
the zeros are added.
"""

import tensorflow as tf

from keras_pergrad.factors import join
from keras_pergrad.samples.pulled import Pulled
from keras_pergrad.samples.weight_paths import path_rule


@path_rule("Slice", "StridedSlice", "Split", "SplitV", "Unpack")
def part(factor, op, source, target):
    """Return the factor of a tensor from that of a part of it."""
    if source != (1 if op.type == "Split" else 0):
        return None
    return Part(factor, op, source, target)


class Part(Pulled):
    """A factor of a part of a tensor, pulled back to the whole of it.

    Attributes:
        key: the same for ops that take the same part; None if it is not known
            which one an op takes.
    """

    def __init__(self, factor, op, source, target):
        whole, own = op.inputs[source], op.outputs[target]
        super().__init__(factor, own, [whole], True)
        others = [
            tf.get_static_value(t)
            for k, t in enumerate(op.inputs)
            if k != source
        ]
        self.key = self._place = None
        known = whole.shape.is_fully_defined() and own.shape.is_fully_defined()
        if not known or any(value is None for value in others):
            return
        attributes = sorted(
            (name, value.SerializeToString(deterministic=True))
            for name, value in op.node_def.attr.items()
        )
        values = tuple(value.tobytes() for value in others)
        shape = tuple(whole.shape)
        self.key = op.type, target, shape, values, tuple(attributes)
        self._place = _place(op, target, others, own.shape.as_list())

    # They are those of `Pulled`, although it materialises with fewer ops.
    dot, sum_of_squares = Pulled.dot, Pulled.sum_of_squares
    gram, project, kronecker = Pulled.gram, Pulled.project, Pulled.kronecker
    axes, rotated = Pulled.axes, Pulled.rotated

    def materialize(self):
        if self._gradients is None and self._place is not None:
            starts, sizes = self._place
            gradients = self.factor.materialize()
            gradients = tf.reshape(gradients, [tf.shape(gradients)[0], *sizes])
            zeros = [
                (start, whole - start - size)
                for start, size, whole in zip(starts, sizes, self.shape)
            ]
            self._gradients = tf.pad(gradients, [(0, 0), *zeros])
        return super().materialize()


def _place(op, target, others, sizes):
    """Return where a part begins in the whole, and its sizes, or None."""
    if op.type == "Slice":
        return [int(k) for k in others[0]], sizes
    starts = [0] * len(sizes)
    if op.type == "Split":
        starts[int(others[0])] = target * sizes[int(others[0])]
    elif op.type == "SplitV":
        if -1 in others[0]:  # what is left over
            return None
        starts[int(others[1])] = int(sum(others[0][:target]))
    elif op.type == "Unpack":
        axis = op.get_attr("axis") % (len(sizes) + 1)
        starts.insert(axis, target)
        sizes = [*sizes[:axis], 1, *sizes[axis:]]
    else:
        return None
    return starts, sizes


def merged(factors):
    """Return a variable's factors, those of the same part of it as one."""
    groups, fewer = {}, []
    for factor in factors:
        key = factor.key if type(factor) is Part else None
        if key is None:
            fewer.append(factor)
        else:
            groups.setdefault(key, []).append(factor)
    for group in groups.values():
        first = group[0]
        if len(group) > 1:
            first.factor = join(merged([one.factor for one in group]))
        fewer.append(first)
    return fewer
