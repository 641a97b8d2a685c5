"""Products of weights with weights: LoRA and other low ranks.

The weight that meets the data is W = A·B. A sample's gradient of W is
Σ_t x_t ⊗ dz_t, of A it is Σ_t x_t ⊗ (dz_t Bᵀ), of B it is Σ_t (Aᵀ x_t) ⊗ dz_t
(Hu et al., arXiv 2106.09685). The gradient of W is never computed.
"""

import math
import string

import tensorflow as tf

from keras_pergrad.factors import Full, Outer, Rows
from keras_pergrad.uses.contraction_rules import (
    CONTRACTIONS,
    arranged,
    in_order,
    labelled,
)
from keras_pergrad.uses.op_rules import sizes_of
from keras_pergrad.uses.weight_paths import by_gradient, path_rule


@path_rule(CONTRACTIONS)
def product(factor, op, source, target):
    """Return the factor of A, or of B, from the factor of their product."""
    rules = {Outer: _outer, Full: _full, Rows: _rows}
    term = _Product.of(op, source)
    if term is not None and type(factor) in rules:
        pulled = rules[type(factor)](factor, term)
        if pulled is not None:
            return pulled
    return by_gradient(factor, op, source, target)


class _Product:
    """A product as an einsum.

    Attributes:
        own: the labels of the factor whose gradient is wanted.
        other: the labels of the other factor.
        out: the labels of the product.
        sizes: label to size.
        spare: labels that are not in use.
    """

    def __init__(self, own, other, out, sizes, tensor):
        self.own, self.other, self.out = own, other, out
        self.sizes, self._tensor = sizes, tensor
        self.spare = [c for c in string.ascii_letters if c not in sizes]

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
        own, other = labels[source], labels[1 - source]
        if set(own) - set(other) - set(out):
            return None
        return cls(own, other, out, sizes, op.inputs[1 - source])

    def refined(self, sizes):
        """Return the product with axes of `out` split to fit other sizes.

        Also return the labels that make up each of these sizes. None: the axes
        cannot be split to fit.
        """
        term, parts = self, []
        rest = [(c, self.sizes[c]) for c in self.out]
        for wanted in sizes:
            parts.append([])
            while wanted > 1 and rest:
                c, size = rest.pop(0)
                if size > wanted:
                    if size % wanted:
                        return None
                    new = term.spare[0]
                    term = term._split(c, new, wanted, size // wanted)
                    rest.insert(0, (new, size // wanted))
                    size = wanted
                if wanted % size:
                    return None
                wanted //= size
                parts[-1].append(c)
        # The axes that are left have one element.
        parts[-1] += [c for c, _ in rest]
        return term, parts

    def _split(self, c, new, first, second):
        own, other, out = (
            labels.replace(c, c + new)
            for labels in (self.own, self.other, self.out)
        )
        sizes = {**self.sizes, c: first, new: second}
        tensor = tf.reshape(self._tensor, [sizes[label] for label in other])
        return _Product(own, other, out, sizes, tensor)

    def times(self, tensor, labels, wanted):
        """Return the einsum of a tensor with the other factor."""
        other = tf.cast(self._tensor, tensor.dtype)
        equation = f"{''.join(labels)},{self.other}->{''.join(wanted)}"
        return tf.einsum(equation, tensor, other)

    def rows(self, ids, axis):
        """Return the other factor, its axis first, at indices of this axis."""
        rest = self.other.replace(axis, "")
        table = tf.einsum(f"{self.other}->{axis}{rest}", self._tensor)
        return tf.gather(table, ids), rest

    def apart(self, tensor, labels):
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
    n = term.spare[0]
    gradients = factor.gradients
    return Full(term.times(gradients, n + term.out, n + term.own))


def _rows(factor, term):
    if len(term.out) != 2 or factor.whole != term.shape(term.out):
        return None
    row, column = term.out
    if row in term.other:
        if row in term.own or column not in term.own or len(term.own) != 2:
            return None
        x, rest = term.rows(factor.ids, row)
        if column in rest or len(rest) != 1:
            return None
        turned = in_order([*rest, column], term.own, term.sizes)
        x = tf.cast(x, factor.dz.dtype)
        return Outer(x, factor.dz, term.shape(term.own), *turned)
    n, t = term.spare[:2]
    if term.own[0] != row or len(term.own) != 2:
        return None
    dz = term.times(factor.dz, [n, t, column], [n, t, term.own[1]])
    return Rows(factor.ids, dz, term.shape(term.own), factor.method)


def _outer(factor, term):
    if list(factor.shape) != term.shape(term.out):
        return None
    shape = term.shape(term.own)
    separated = _sides(factor, term)
    if separated is None:
        return None
    term, sides = separated
    # The other factor is multiplied to the side for which fewer entries of its
    # axes become positions.
    options = []
    for side in (0, 1):
        beside = [c for c in sides[1 - side][1] if c in term.other]
        if not any(c in term.own for c in beside):
            options.append((term.count(beside), side, beside))
    if not options:
        return None
    _, side, beside = min(options)
    both = term.spare[:2]  # samples and positions
    (made, its), (still, labels) = sides[side], sides[1 - side]
    kept = [c for c in labels if c in term.own]
    new = [c for c in term.own if c not in kept]
    positions, order = [both[1], *beside], [*both, *beside, *new]
    made = term.times(term.apart(made, its), [*both, *its], order)
    made = arranged(made, order, [], positions, new, term.sizes)
    still = term.apart(still, labels)
    still = arranged(still, [*both, *labels], [], positions, kept, term.sizes)
    pair = [(made, new), (still, kept)]
    (x, left), (dz, right) = pair[::-1] if side else pair
    turned = in_order([*left, *right], term.own, term.sizes)
    return Outer(x, dz, shape, *turned, factor.method)


def _sides(factor, term):
    """Return the product with separate labels for x and dz, or None.

    The result is (the product, [(x, its labels), (dz, its labels)]).
    """
    widths = [factor.x.shape[-1], factor.dz.shape[-1]]
    sizes = widths
    if factor.perm is not None:
        sizes = [factor.unpermuted[k] for k in factor.perm]
    refined = term.refined(sizes)
    if refined is None:
        return None
    term, parts = refined
    if factor.perm is not None:
        parts = [parts[factor.perm.index(k)] for k in range(len(parts))]
    left, right = [], [c for part in parts for c in part]
    while right and term.count(left) < widths[0]:
        left.append(right.pop(0))
    if [term.count(left), term.count(right)] != widths:
        return None
    return term, [(factor.x, left), (factor.dz, right)]
