"""Type rules of lists of tensors, in which loops keep their steps.

The type of a list is that of its tensors.
"""

from keras_pergrad.samples.types.sample_loops import BY_SAMPLE
from keras_pergrad.samples.types.tensor_types import (
    At,
    Free,
    Mixes,
    Untyped,
    joined,
)
from keras_pergrad.samples.types.type_rules import type_rule


@type_rule("TensorListFromTensor")
def from_tensor(op, types):
    """Make a list of the entries of the first axis."""
    kind = types[0]
    if not isinstance(kind, At):
        return kind
    if kind.place != (0, 1, 1) and kind.axis == 0:
        raise Mixes(BY_SAMPLE)
    return kind.on(kind.axis - 1)


@type_rule("TensorListGetItem")
def get(op, types):
    """Take one tensor of the list."""
    _require_free(types[1:])
    return types[0]


@type_rule("TensorListGather")
def gather(op, types):
    """Stack some tensors of the list."""
    _require_free(types[1:])
    kind = types[0]
    return kind.on(kind.axis + 1) if isinstance(kind, At) else kind


@type_rule("TensorListScatterV2", "TensorListScatterIntoExistingList")
def scatter(op, types):
    """Make a list from a tensor's entries of the first axis."""
    value = 0 if op.type == "TensorListScatterV2" else 1
    _require_free(t for k, t in enumerate(types) if k > 1 - (value == 1))
    kind = types[value]
    if isinstance(kind, At):
        if kind.axis == 0:
            raise Mixes(BY_SAMPLE)
        kind = kind.on(kind.axis - 1)
    return joined(types[0], kind) if value else kind


@type_rule("TensorListSetItem")
def put(op, types):
    """Put another tensor at a place of a list."""
    _require_free(types[1:2])
    return joined(types[0], types[2])


@type_rule("TensorListPushBack")
def push(op, types):
    """Add one more tensor to a list."""
    return joined(types[0], types[1])


@type_rule("TensorListPopBack")
def pop(op, types):
    """Take the last tensor from a list."""
    _require_free(types[1:])
    return types[0]


@type_rule("TensorListStack")
def stack(op, types):
    """Add one axis, for the tensors."""
    kind = types[0]
    return kind.on(kind.axis + 1) if isinstance(kind, At) else kind


@type_rule("TensorListConcat", "TensorListConcatV2")
def concat(op, types):
    """Join the tensors one after the other."""
    kind = types[0]
    if not isinstance(kind, At):
        return kind
    if kind.axis:
        return [kind, Free()]
    length = op.shape_out()[0]
    if length is None or length % (op.n * kind.rows * kind.lead):
        raise Untyped("how many tensors it joins is not known while tracing")
    lead = length // (op.n * kind.rows)
    return [At(0, kind.rows, lead, kind.flags), Free()]


@type_rule("TensorListSplit")
def split(op, types):
    """Make a list of parts of the first axis."""
    kind = types[0]
    if isinstance(kind, At) and kind.axis == 0:
        raise Mixes(BY_SAMPLE)
    return kind


@type_rule("OptionalFromValue", "OptionalGetValue")
def optional(op, types):
    """Keep a tensor for the gradient of a condition, or give it back."""
    return list(types) if op.type == "OptionalFromValue" else types[0]


@type_rule("TensorListResize")
def resize(op, types):
    """Give a list another length."""
    _require_free(types[1:])
    return types[0]


@type_rule("TensorListConcatLists", "AddNVariant")
def join_lists(op, types):
    """Make one list of several."""
    kind = types[0]
    for other in types[1:]:
        kind = joined(kind, other)
    return kind


def _require_free(types):
    if any(not isinstance(t, Free) for t in types):
        raise Mixes("takes a place from the values of the samples")
