"""Type rules of products: matrices, einsums, solves and transforms."""

from keras_pergrad.samples.contraction_rules import labelled
from keras_pergrad.samples.types.elementwise_rules import of_totals
from keras_pergrad.samples.types.tensor_types import (
    At,
    Divisor,
    Free,
    Mixes,
    Total,
    Untyped,
    flags_of,
)
from keras_pergrad.samples.types.type_rules import type_rule
from keras_pergrad.samples.types.typed_op import UNKNOWN_RANK, only_first


def linear_in_totals(op, types):
    """Return the type of a product of sums over samples and free numbers."""
    if any(isinstance(t, At) for t in types):
        raise Mixes("multiplies samples by sums over the samples")
    if sum(isinstance(t, Total) for t in types) == 1 and not any(
        isinstance(t, Divisor) for t in types
    ):
        return Total(flags_of(types))
    return of_totals(op, types)


@type_rule("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum")
def product(op, types):
    """Add products over the labels that are not in the output."""
    if any(isinstance(t, (Total, Divisor)) for t in types):
        return linear_in_totals(op, types)
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
    where, shapes, flags = set(), set(), 0
    for term, kind in zip(labels, types):
        flags |= kind.flags
        if isinstance(kind, At):
            where.add(term[kind.axis])
            shapes.add((kind.rows, kind.lead))
    if len(where) > 1 or len(shapes) > 1:
        raise Mixes("multiplies all pairs of samples")
    (label,), ((rows, lead),) = where, shapes
    if label not in target:
        return Total(flags)
    return At(target.index(label), rows, lead, flags)


@type_rule("SparseTensorDenseMatMul")
def sparse_product(op, types):
    """Multiply a sparse matrix of no samples with a dense one of samples."""
    *sparse, dense = types
    if not all(isinstance(t, Free) for t in sparse):
        raise Untyped("sparse tensors have no axis for the samples")
    if not isinstance(dense, At):
        return linear_in_totals(op, [Free(flags_of(sparse)), dense])
    if dense.axis == (1 if op.attribute("adjoint_b") else 0):
        raise Mixes("multiplies all pairs of samples")
    return At(1, dense.rows, dense.lead, flags_of(types))


_INNER = {
    1: [
        "FFT",
        "IFFT",
        "RFFT",
        "IRFFT",
        "MatrixDiag",
        "MatrixDiagV2",
        "MatrixDiagV3",
        "BatchFFT",
        "BatchIFFT",
    ],
    2: [
        "FFT2D",
        "IFFT2D",
        "RFFT2D",
        "IRFFT2D",
        "MatrixBandPart",
        "MatrixDiagPart",
        "MatrixDiagPartV2",
        "MatrixDiagPartV3",
        "MatrixInverse",
        "Cholesky",
        "MatrixDeterminant",
        "LogMatrixDeterminant",
        "SelfAdjointEigV2",
        "Svd",
        "Qr",
        "MatrixExponential",
        "MatrixSquareRoot",
        "MatrixLogarithm",
        "Lu",
        "Eig",
        "BatchMatrixBandPart",
        "TridiagonalMatMul",
    ],
    3: ["FFT3D", "IFFT3D", "RFFT3D", "IRFFT3D"],
}
_AXES = {op: count for count, ops in _INNER.items() for op in ops}


@type_rule(*_AXES)
def transform(op, types):
    """Something over the last axes."""
    kind = only_first(types)
    if not isinstance(kind, At):
        if isinstance(kind, Total) and "FFT" in op.type:
            return kind
        return of_totals(op, types)
    if kind.axis >= op.rank() - _AXES[op.type]:
        raise Mixes("transforms the samples' axis")
    return kind


@type_rule(
    "MatrixSolve MatrixTriangularSolve MatrixSolveLs CholeskyGrad "
    "MatrixSetDiag MatrixSetDiagV2 MatrixSetDiagV3 TridiagonalSolve "
    "BandedTriangularSolve Cross"
)
def several_matrices(op, types):
    """Something over the last axes of several tensors."""
    by_axis = {}
    if _are_right_sides(op, types):
        return types[1].flagged(types[0].flags)
    for k, kind in enumerate(types):
        if isinstance(kind, (Total, Divisor)):
            raise Mixes("takes sums over the samples")
        if isinstance(kind, At):
            inner = 1 if op.type == "Cross" or _is_diagonal(op, k) else 2
            if kind.axis >= op.rank(k) - inner:
                raise Mixes("takes the samples' axis for that of matrices")
            # Counted from the axes of the matrices.
            by_axis[kind.axis - (op.rank(k) - inner)] = kind
    if len(by_axis) != 1:
        raise Mixes("brings samples together that are on different axes")
    ((place, kind),) = by_axis.items()
    inner = 1 if op.type == "Cross" else 2
    return At(
        op.rank_out() - inner + place, kind.rows, kind.lead, flags_of(types)
    )


def _is_diagonal(op, k):
    return k == 1 and op.type.startswith("MatrixSetDiag")


def _are_right_sides(op, types):
    """Whether each sample is one right side: the columns are solved alone."""
    if op.type not in ("MatrixSolve", "MatrixTriangularSolve"):
        return False
    matrix, sides = types
    columns = isinstance(sides, At) and sides.axis == op.rank(1) - 1
    # Where the matrices have more axes than the right sides, theirs come first.
    return columns and isinstance(matrix, Free) and op.rank(0) <= op.rank(1)
