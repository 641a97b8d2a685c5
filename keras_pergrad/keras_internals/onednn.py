"""Protection from steps that would damage the process.

On the CPU some builds of TensorFlow compute a product of shapes [b, 1, t, k]
and [k, n] wrong or corrupt the heap (tensorflow#117700), which crashes this
process. So the traced step is searched for this shape, and such a product is
tried in a separate process.

Private name in use, covered by `tests/keras_internals/test_onednn.py`:
`FuncGraph._functions`.
"""

import functools
import os
import subprocess
import sys

_PRODUCTS = ("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")


def defect(graph):
    """Return the error that a traced step would cause on the CPU, or None."""
    for op in _operations(graph):
        shape = _shape(op)
        if shape is not None:
            harm = _harm(*shape)
            if harm:
                b, t, k, n = shape
                return (
                    f"a product of shapes [{b}, 1, {t}, {k}] and [{k}, {n}] "
                    f"({op.name}) {harm}: a defect of oneDNN in TensorFlow. "
                    "It was tried apart and is not run here. Set "
                    "TF_ENABLE_ONEDNN_OPTS=0 before TensorFlow is imported, "
                    "or leave out the axis of size 1"
                )
    return None


def _operations(graph):
    yield from graph.get_operations()
    for function in graph._functions.values():
        inner = getattr(function, "graph", None)
        if inner is not None:
            yield from _operations(inner)


def _shape(op):
    """Return (b, t, k, n) of such a product, or None for other ops."""
    if op.type not in _PRODUCTS or op.inputs[0].dtype.size > 4:
        return None
    left, right = (tensor.shape for tensor in op.inputs)
    if (left.rank, right.rank) != (4, 2) or left[1] != 1:
        return None
    t, k = (left[3], left[2]) if op.get_attr("adj_x") else (left[2], left[3])
    n = right[0] if op.get_attr("adj_y") else right[1]
    # An axis of unknown size holds samples, or the like.
    return tuple(8 if d is None else int(d) for d in (left[0], t, k, n))


@functools.cache
def _harm(*shape):
    """Return what such a product does wrong here, "" if it is right."""
    done = subprocess.run(
        [sys.executable, "-m", "keras_pergrad.analysis.doctor.probe", "matmul"]
        + [str(size) for size in shape],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    if done.returncode == 0 and done.stdout.strip().endswith("right"):
        return ""
    if "wrong" in done.stdout:
        return "gives wrong numbers"
    return "crashes the process"
