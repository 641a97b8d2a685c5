"""Products of weights with weights: LoRA and other low ranks.

The weight that meets the data is W = A·B. A sample's gradient of W is
Σ_t x_t ⊗ dz_t, of A it is Σ_t x_t ⊗ (dz_t Bᵀ), of B it is Σ_t (Aᵀ x_t) ⊗ dz_t
(Hu et al., arXiv 2106.09685). The gradient of W is never computed.
"""

import math
import string

import tensorflow as tf

from keras_pergrad.factors import Full, Outer, Rows
from keras_pergrad.factors.written_out import sizes_of
from keras_pergrad.uses.contraction_rules import (
    CONTRACTIONS,
    arrange_axes,
    labelled,
    permutation_to,
)
from keras_pergrad.uses.weight_paths import by_gradient, path_rule


@path_rule(CONTRACTIONS)
def product(factor, op, source, *, target):
    """Return the factor of A, or of B, from the factor of their product."""
    rules = {Outer: _outer, Full: _full, Rows: _rows}
    term = _Product.of(op, source)
    if term is not None and type(factor) in rules:
        input_factor = rules[type(factor)](factor, term)
        if input_factor is not None:
            return input_factor
    return by_gradient(factor, op, source, target=target)


class _Product:
    """A product as an einsum.

    Attributes:
        target: the labels of the factor whose gradient is wanted.
        other: the labels of the other factor.
        out: the labels of the product.
        sizes: label to size.
        unused_labels: labels that are not in use.
    """

    def __init__(self, target, other, out, *, sizes, tensor):
        self.target, self.other, self.out = target, other, out
        self.sizes, self._tensor = sizes, tensor
        self.unused_labels = [c for c in string.ascii_letters if c not in sizes]

    @classmethod
    def of(cls, op, source):
        """Return the product; None if an axis is broadcast or summed alone."""
        labelling = labelled(op)
        if isinstance(labelling, str):
            return None
        labels, out = labelling
        sizes = {}
        for tensor, term in zip((*op.inputs, op.outputs[0]), (*labels, out)):
            for c, size in zip(term, tensor.shape.as_list()):
                if size is None or sizes.setdefault(c, size) != size:
                    return None
        target, other = labels[source], labels[1 - source]
        if set(target) - set(other) - set(out):
            return None
        return cls(
            target, other, out, sizes=sizes, tensor=op.inputs[1 - source]
        )

    def split_output(self, sizes):
        """Return the product with axes of `out` split to fit other sizes.

        Also return the labels that make up each of these sizes. None: the axes
        cannot be split to fit.
        """
        # Sizes take whole axes from the left; an axis that is larger than what
        # is left of a size is split in two.
        term, parts = self, []
        axes = [(c, self.sizes[c]) for c in self.out]
        for remaining in sizes:
            parts.append([])
            while remaining > 1 and axes:
                c, size = axes.pop(0)
                if size > remaining:
                    if size % remaining:
                        return None
                    new = term.unused_labels[0]
                    term = term._split_axis(
                        c, new, remaining, second=size // remaining
                    )
                    axes.insert(0, (new, size // remaining))
                    size = remaining
                if remaining % size:
                    return None
                remaining //= size
                parts[-1].append(c)
        # The axes that are left have one element.
        parts[-1] += [c for c, _ in axes]
        return term, parts

    def _split_axis(self, c, new, first, *, second):
        target, other, out = (
            labels.replace(c, c + new)
            for labels in (self.target, self.other, self.out)
        )
        sizes = {**self.sizes, c: first, new: second}
        tensor = tf.reshape(self._tensor, [sizes[label] for label in other])
        return _Product(target, other, out, sizes=sizes, tensor=tensor)

    def multiply(self, tensor, labels, output_labels):
        """Return the einsum of a tensor with the other factor."""
        other = tf.cast(self._tensor, tensor.dtype)
        equation = f"{''.join(labels)},{self.other}->{''.join(output_labels)}"
        return tf.einsum(equation, tensor, other)

    def gather_rows(self, ids, axis):
        """Return the other factor, its axis first, at indices of this axis."""
        other_labels = self.other.replace(axis, "")
        table = tf.einsum(f"{self.other}->{axis}{other_labels}", self._tensor)
        return tf.gather(table, ids), other_labels

    def split_features(self, tensor, labels):
        """Return a tensor (n, T, features) with labelled axes for features."""
        shape = [*sizes_of(tensor)[:2], *self.shape(labels)]
        return tf.reshape(tensor, shape)

    def shape(self, labels):
        """Return the sizes of axes."""
        return [self.sizes[c] for c in labels]

    def count(self, labels):
        """Return the number of elements of axes."""
        return math.prod(self.shape(labels))


def _full(factor, term):
    n = term.unused_labels[0]
    gradients = factor.gradients
    return Full(term.multiply(gradients, n + term.out, n + term.target))


def _rows(factor, term):
    if len(term.out) != 2 or factor.whole != term.shape(term.out):
        return None
    row, column = term.out
    if row in term.other:
        if (
            row in term.target
            or column not in term.target
            or len(term.target) != 2
        ):
            return None
        x, other_labels = term.gather_rows(factor.ids, row)
        if column in other_labels or len(other_labels) != 1:
            return None
        perm, unpermuted = permutation_to(
            [*other_labels, column], term.target, term.sizes
        )
        x = tf.cast(x, factor.dz.dtype)
        return Outer(
            x,
            factor.dz,
            term.shape(term.target),
            perm=perm,
            unpermuted=unpermuted,
        )
    n, t = term.unused_labels[:2]
    if term.target[0] != row or len(term.target) != 2:
        return None
    dz = term.multiply(factor.dz, [n, t, column], [n, t, term.target[1]])
    return Rows(factor.ids, dz, term.shape(term.target), method=factor.method)


def _outer(factor, term):
    if list(factor.shape) != term.shape(term.out):
        return None
    shape = term.shape(term.target)
    split = _sides(factor, term)
    if split is None:
        return None
    term, sides = split
    # The other factor is multiplied to the side for which fewer entries of its
    # axes become positions.
    options = []
    for side in (0, 1):
        position_labels = [c for c in sides[1 - side][1] if c in term.other]
        if not any(c in term.target for c in position_labels):
            options.append((term.count(position_labels), side, position_labels))
    if not options:
        return None
    _, side, position_labels = min(options)
    batch_labels = term.unused_labels[:2]  # samples and positions
    multiplied, multiplied_labels = sides[side]
    unchanged, unchanged_labels = sides[1 - side]
    kept_labels = [c for c in unchanged_labels if c in term.target]
    new_labels = [c for c in term.target if c not in kept_labels]
    positions = [batch_labels[1], *position_labels]
    order = [*batch_labels, *position_labels, *new_labels]
    multiplied = term.multiply(
        term.split_features(multiplied, multiplied_labels),
        [*batch_labels, *multiplied_labels],
        order,
    )
    multiplied = arrange_axes(
        multiplied,
        order,
        [],
        positions=positions,
        features=new_labels,
        sizes=term.sizes,
    )
    unchanged = term.split_features(unchanged, unchanged_labels)
    unchanged = arrange_axes(
        unchanged,
        [*batch_labels, *unchanged_labels],
        [],
        positions=positions,
        features=kept_labels,
        sizes=term.sizes,
    )
    pair = [(multiplied, new_labels), (unchanged, kept_labels)]
    (x, left), (dz, right) = pair[::-1] if side else pair
    perm, unpermuted = permutation_to([*left, *right], term.target, term.sizes)
    return Outer(
        x,
        dz,
        shape,
        perm=perm,
        unpermuted=unpermuted,
        method=factor.method,
    )


def _sides(factor, term):
    """Return the product with separate labels for x and dz, or None.

    The result is (the product, [(x, its labels), (dz, its labels)]).
    """
    widths = [factor.x.shape[-1], factor.dz.shape[-1]]
    sizes = widths
    if factor.perm is not None:
        sizes = [factor.unpermuted[k] for k in factor.perm]
    refined = term.split_output(sizes)
    if refined is None:
        return None
    term, axis_labels = refined
    if factor.perm is not None:
        axis_labels = [
            axis_labels[factor.perm.index(k)] for k in range(len(axis_labels))
        ]
    left_labels = []
    right_labels = [c for labels in axis_labels for c in labels]
    while right_labels and term.count(left_labels) < widths[0]:
        left_labels.append(right_labels.pop(0))
    if [term.count(left_labels), term.count(right_labels)] != widths:
        return None
    return term, [(factor.x, left_labels), (factor.dz, right_labels)]
