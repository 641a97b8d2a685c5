"""The types of ops of which nothing is proved: what holds all the same."""

import dataclasses

from keras_pergrad.samples.types.sample_loops import Single
from keras_pergrad.samples.types.tensor_types import (
    BY_SIZE,
    DIVIDED,
    VALUES,
    At,
    Free,
    Total,
    flags_of,
)


def of_one_sample(op, types, n):
    """Return types where there is one sample, or none: nothing can mix."""
    place = next((t.axis for t in types if isinstance(t, At)), 0)
    kinds = []
    for tensor in op.outputs:
        sizes = tensor.shape.as_list() if tensor.shape.rank else []
        ones = [k for k, size in enumerate(sizes) if size == n]
        axis = place if place in ones else next(iter(ones), None)
        flags = flags_of(types)
        kinds.append(Total(flags) if axis is None else At(axis, flags=flags))
    return kinds


def as_vouched(op, types, n):
    """Return the samples where they were, as the user says.

    Where no input has an axis for them, an output has it by its size, n.
    """
    if all(isinstance(t, Free) for t in types):
        return Free(flags_of(types))
    at = next((t for t in types if isinstance(t, At)), None)
    flags = flags_of(types) & ~(BY_SIZE | DIVIDED)
    single = next((t for t in types if isinstance(t, Single)), None)
    if single is not None:
        return dataclasses.replace(single, flags=flags)
    if at is None:
        return [
            At(0, flags=flags | VALUES)
            if t.shape.rank and t.shape[0] == n
            else Total(flags | VALUES)
            for t in op.outputs
        ]
    return [
        dataclasses.replace(at, flags=flags, factor=())
        if t.shape.rank is None or t.shape.rank > at.axis
        else Total(flags | VALUES)
        for t in op.outputs
    ]


def are_placed(op, kinds, n):
    """Whether each output that follows samples has an axis of all of them."""
    if not isinstance(kinds, list):
        return isinstance(kinds, (Free, Single))
    return all(
        isinstance(kind, At)
        and t.shape.rank is not None
        and t.shape[kind.axis] == n * kind.rows * kind.lead
        for kind, t in zip(kinds, op.outputs)
    )
