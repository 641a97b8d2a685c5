"""The types of matrix products and einsums, and the labels of their axes."""

import string

from keras_pergrad.proof.elementwise_rules import type_of_totals
from keras_pergrad.proof.tensor_types import (
    ALL,
    BY_SIZE,
    UNKNOWN_RANK,
    At,
    Divisor,
    Free,
    Mixes,
    Total,
    Untyped,
    flags_of,
    type_rule,
)


def type_linear_in_totals(op, types):
    """Return the type of a product of sums over samples and free numbers."""
    if any(isinstance(t, At) for t in types):
        raise Mixes("multiplies samples by sums over the samples")
    if sum(isinstance(t, Total) for t in types) == 1 and not any(
        isinstance(t, Divisor) for t in types
    ):
        return Total(flags_of(types))
    return type_of_totals(op, types)


@type_rule("MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3 Einsum", inputs=ALL)
def contraction(op, types):
    """Add products over the labels that are not in the output."""
    if any(isinstance(t, (Total, Divisor)) for t in types):
        return type_linear_in_totals(op, types)
    if op.type == "Einsum" and len(op.inputs) == 1:
        equation = op.attribute("equation").decode()
        if "..." in equation:
            raise Untyped(f"its equation is {equation}")
        source, target = equation.split("->")
        labels = [source]
    else:
        if any(t.shape.rank is None for t in op.inputs):
            raise Untyped(UNKNOWN_RANK)
        labelling = labelled(op.op)
        if isinstance(labelling, str):
            raise Untyped(labelling)
        labels, target = labelling
    # Samples stay separate if all inputs have them under one label.
    sample_labels, layouts, flags = set(), set(), 0
    for term, input_type in zip(labels, types):
        flags |= input_type.flags
        if isinstance(input_type, At):
            sample_labels.add(term[input_type.axis])
            layouts.add((input_type.rows, input_type.lead))
    if len(sample_labels) > 1 or len(layouts) > 1:
        raise Mixes("multiplies all pairs of samples")
    (label,), ((rows, lead),) = sample_labels, layouts
    if op.any_number and _adds_up_free_entries(
        op, types, labels, target=target
    ):
        flags |= BY_SIZE
    if label not in target:
        return Total(flags)
    return At(target.index(label), rows, lead, flags=flags)


def _adds_up_free_entries(op, types, labels, *, target):
    """Whether numbers for all samples are added up, as many as samples."""
    taken = {*target}.union(
        *(term for term, t in zip(labels, types) if isinstance(t, At))
    )
    return any(
        label not in taken and size and size % op.n == 0
        for k, (term, t) in enumerate(zip(labels, types))
        if isinstance(t, Free)
        for label, size in zip(term, op.shape(k))
    )


@type_rule("SparseTensorDenseMatMul", inputs=ALL)
def sparse_product(op, types):
    """Multiply a sparse matrix of no samples with a dense one of samples."""
    *sparse, dense = types
    if not all(isinstance(t, Free) for t in sparse):
        raise Untyped("sparse tensors have no axis for the samples")
    if not isinstance(dense, At):
        return type_linear_in_totals(op, [Free(flags_of(sparse)), dense])
    if dense.axis == (1 if op.attribute("adjoint_b") else 0):
        raise Mixes("multiplies all pairs of samples")
    return At(1, dense.rows, dense.lead, flags=flags_of(types))


def labelled(op):
    """Return ([labels of each input's axes], labels of the output's axes).

    For an op that has no such form return the reason, a string.
    """
    ranks = [t.shape.rank for t in op.inputs]
    if None in ranks:
        return "the rank of an input is not known"
    if op.type == "Einsum":
        return _equation_labels(op.get_attr("equation").decode(), ranks)
    names = ("transpose_a", "transpose_b")
    if op.type != "MatMul":
        names = ("adj_x", "adj_y")
    max_rank = max(ranks)
    leading = string.ascii_uppercase[: max_rank - 2]
    labels = []
    for rank, name, axis_pair in zip(ranks, names, ("ab", "bc")):
        axis_pair = axis_pair[::-1] if op.get_attr(name) else axis_pair
        labels.append(leading[max_rank - rank :] + axis_pair)
    return labels, leading + "ac"


def _equation_labels(equation, ranks):
    if len(ranks) != 2:
        return "it has one input"
    inputs, target = equation.split("->")
    labels = inputs.split(",")
    if "..." in equation:
        unused_labels = [c for c in string.ascii_letters if c not in equation]
        ellipsis_ranks = [
            r - len(term.replace("...", "")) if "..." in term else 0
            for r, term in zip(ranks, labels)
        ]
        ellipsis_labels = "".join(unused_labels[: max(ellipsis_ranks)])
        labels = [
            term.replace("...", ellipsis_labels[len(ellipsis_labels) - rank :])
            for term, rank in zip(labels, ellipsis_ranks)
        ]
        target = target.replace("...", ellipsis_labels)
    if any(len(set(term)) < len(term) for term in (*labels, target)):
        return f"equation {equation!r} repeats a label"
    return labels, target
