"""Factors of every class and layout, and their gradients written out."""

import functools

import numpy as np
import tensorflow as tf

from keras_pergrad import factors
from keras_pergrad.factors.sampled import select

N = 4
KEEP = np.array([True, False, True, True])
WEIGHTS = np.array([0.5, 1.0, 2.0, 0.25])


class Turned(factors.Adapted):
    """Of a matrix whose rows are in reverse order."""

    def change(self, tensor):
        return tf.reverse(tensor, [tensor.shape.rank - 2])

    def squared_norms(self):
        return self.factor.squared_norms()


class Tripled(factors.Adapted):
    """Each entry three times, by itself."""

    entrywise = True

    def change(self, tensor):
        return 3 * tensor

    def squared_norms(self):
        return 9 * self.factor.squared_norms()


def drawn(*shape):
    rng = np.random.default_rng(shape)
    return tf.constant(rng.normal(size=(N, *shape)))


def rows(*shape):
    ids = np.random.default_rng(shape).integers(0, 5, (N, *shape))
    return factors.Rows(tf.constant(ids), drawn(*shape, 3), (5, 3))


def _outer(inputs, outputs, shape=None, **layout):
    """Of two positions."""
    return factors.Outer(drawn(2, inputs), drawn(2, outputs), shape, **layout)


def _blocks(positions, shape=None, **layout):
    x, dz = drawn(2, positions, 3), drawn(2, positions, 4)
    return factors.Blocks(x, dz, shape, **layout)


def patches():
    windows = factors.Windows.of(
        (8,), (3,), (1,), dilation=(1,), padding="valid"
    )
    return factors.Patches(drawn(8, 2), drawn(6, 4), windows, shape=(3, 2, 4))


def _patches(groups=1, dilation=1, strides=1):
    windows = factors.Windows.of(
        (8,), (3,), (strides,), dilation=(dilation,), padding="same"
    )
    return factors.Patches(
        drawn(8, 4),
        drawn(windows.count, 4 if groups == 4 else 6),
        windows,
        shape=(3, 4 // groups, 6) if groups < 4 else (3, 4, 1),
        groups=groups,
    )


def _several_axes():
    return factors.Rows(rows(6).ids, drawn(6, 6), (5, 6), whole=(5, 3, 2))


#: One of each class.
FACTORS = {
    "Full": lambda: factors.Full(drawn(3, 2)),
    "Sum": lambda: factors.Sum(drawn(7, 3)),
    "Product": lambda: factors.Product(drawn(7, 3), drawn(7, 3)),
    "Outer": lambda: factors.Outer(drawn(4), drawn(6)),
    "Outer of positions": lambda: _outer(4, 6),
    "Outer of few positions": lambda: factors.Outer(
        drawn(2, 3, 40), drawn(2, 3, 60)
    ),
    "Outer turned": lambda: factors.Outer(
        drawn(9, 4), drawn(9, 6), [6, 4], perm=[1, 0], unpermuted=[4, 6]
    ),
    "Blocks": lambda: _blocks(5),
    "Rows": lambda: rows(6),
    "Patches": patches,
    "Held": lambda: factors.Held(
        drawn(4, 6), [6, 4], [1, 0], unpermuted=[4, 6]
    ),
    "Columns": lambda: factors.Columns(
        [factors.Full(drawn(3, 2)), factors.Outer(drawn(3), drawn(4))]
    ),
    "Joined": lambda: factors.Joined(
        [factors.Full(drawn(3, 4)), factors.Outer(drawn(3), drawn(4))]
    ),
    "join of look-ups": lambda: factors.join([rows(6), rows(2)]),
    "join of a table and a matrix": lambda: factors.join(
        [rows(6), _outer(5, 3)]
    ),
    "Adapted": lambda: Turned(factors.Outer(drawn(4), drawn(6))),
    "Adapted table": lambda: Turned(rows(6)),
    "Widened": lambda: factors.Widened(factors.Sum(drawn(7, 3)), "float64"),
}
#: The same classes in other layouts.
LAYOUTS = {
    "many positions": lambda: factors.Outer(drawn(300, 4), drawn(300, 3)),
    "heads behind": lambda: _outer(5, 6, [5, 3, 2]),
    "heads before": lambda: _outer(6, 5, [3, 2, 5]),
    "heads around": lambda: _outer(
        5, 6, [3, 5, 2], perm=[1, 0, 2], unpermuted=[5, 3, 2]
    ),
    "heads turned": lambda: _outer(
        6, 5, [2, 5, 3], perm=[1, 2, 0], unpermuted=[3, 2, 5]
    ),
    "an axis on both sides": lambda: _outer(4, 3, [2, 6]),
    "a vector": lambda: _outer(6, 1, [6]),
    "a number": lambda: factors.Sum(drawn(7), []),
    "a row": lambda: _outer(1, 9, [9]),
    "a table of several axes": _several_axes,
    "columns of vectors": lambda: factors.Columns(
        [factors.Sum(drawn(3)), factors.Sum(drawn(4))]
    ),
    "columns of three parts": lambda: factors.Columns(
        [
            factors.Full(drawn(3, 2)),
            factors.Outer(drawn(3), drawn(4)),
            factors.Full(drawn(3, 3)),
        ]
    ),
    "dilated": lambda: _patches(dilation=2),
    "strides": lambda: _patches(strides=2),
    "groups": lambda: _patches(groups=2),
    "depthwise": lambda: _patches(groups=4),
    "blocks of many positions": lambda: _blocks(90),
    "blocks of one position": lambda: _blocks(1),
    "tripled": lambda: Tripled(factors.Outer(drawn(4), drawn(6))),
    "a tripled table": lambda: Tripled(rows(6)),
    "blocks turned": lambda: _blocks(
        5, [3, 2, 4], perm=[1, 0, 2], unpermuted=[2, 3, 4]
    ),
    "joined matrices": lambda: factors.join(
        [FACTORS["Outer of positions"](), FACTORS["Outer"]()]
    ),
    "tied and turned": lambda: factors.join(
        [rows(6), _outer(3, 5, [5, 3], perm=[1, 0], unpermuted=[3, 5])]
    ),
}
ALL = {**FACTORS, **LAYOUTS}
#: Which axes are on the left of those that have two sides.
SIDES = {
    **dict.fromkeys(
        ("Outer", "Outer of positions", "Outer of few positions", "Rows"), (0,)
    ),
    **dict.fromkeys(("many positions", "heads behind", "a vector"), (0,)),
    **dict.fromkeys(
        ("join of look-ups", "joined matrices", "a table of several axes"), (0,)
    ),
    **dict.fromkeys(("Patches", "dilated", "strides", "heads before"), (0, 1)),
    **dict.fromkeys(("Outer turned", "heads around"), (1,)),
    "heads turned": (0, 2),
    "a row": (),
}


@functools.cache
def gradients(name):
    """Return the gradients of a factor, written out."""
    return ALL[name]().materialize().numpy()


#: What a factor holds before it is asked: for norms, or for pairs.
HELD = {
    "nothing": lambda factor: factor,
    "norms": lambda factor: factor.held(),
    "pairs": lambda factor: factor.held(pairs=True),
}


def blanked(name, value, norms):
    """Return a factor whose second sample is `value`, and is not kept."""
    factor = with_second(ALL[name](), value)
    if norms:
        factor = factor.held()
    return select([factor], tf.constant(KEEP))[0]


def with_second(factor, value):
    """Return it with all floats of the second sample set; None keeps them."""

    def change(tensor):
        if value is None or not tensor.dtype.is_floating:
            return tensor
        numbers = np.array(tensor)
        numbers[1] = value
        return tf.constant(numbers)

    return factor.map(change)


def without_first(factor, first):
    """Return it without its first samples."""
    return factor.map(lambda tensor: tensor[first:])


def dense(gradient):
    """Return a gradient as an array."""
    return tf.convert_to_tensor(gradient).numpy()
