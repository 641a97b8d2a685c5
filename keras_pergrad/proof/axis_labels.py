"""The labels of the axes of matrix products and einsums."""

import string


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
