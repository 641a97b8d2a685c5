"""Products that oneDNN computes wrongly on the CPU.

Some builds of TensorFlow compute a product of shapes [b, 1, t, k]
and [k, n] wrong or corrupt the heap (tensorflow#117700), which crashes this
process. So the traced step is searched for this shape, and such a product is
tried in a separate process.

Private names in use: `FuncGraph._functions`.
"""

import functools
import os
import subprocess
import sys

_PRODUCTS = ("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")


def defect(graph):
    """Describe the error that a traced step would cause on the CPU, or None."""
    for op in _all_operations(graph):
        shape = _product_shape(op)
        if shape is not None:
            error = _harm(*shape)
            if error:
                b, t, k, n = shape
                return (
                    f"a product of shapes [{b}, 1, {t}, {k}] and [{k}, {n}] "
                    f"({op.name}) {error}: a defect of oneDNN in TensorFlow. "
                    "It was tried in another process and is not run here. "
                    "Set TF_ENABLE_ONEDNN_OPTS=0 before TensorFlow is "
                    "imported, or leave out the axis of size 1"
                )
    return None


def _all_operations(graph):
    yield from graph.get_operations()
    for function in graph._functions.values():
        inner = getattr(function, "graph", None)
        if inner is not None:
            yield from _all_operations(inner)


def _product_shape(op):
    """Return (b, t, k, n) of an affected product, or None for other ops."""
    if op.type not in _PRODUCTS or op.inputs[0].dtype.size > 4:
        return None
    left, right = (tensor.shape for tensor in op.inputs)
    if (left.rank, right.rank) != (4, 2) or left[1] != 1:
        return None
    t, k = (left[3], left[2]) if op.get_attr("adj_x") else (left[2], left[3])
    n = right[0] if op.get_attr("adj_y") else right[1]
    # An axis of unknown size has the samples, or the like: 8 stands for it.
    return tuple(8 if d is None else int(d) for d in (left[0], t, k, n))


@functools.cache
def _harm(*shape):
    """Return what such a product does wrong here, or "" if nothing."""
    # In another process, since it may crash; once for each shape.
    process = subprocess.run(
        [sys.executable, "-m", __name__, *map(str, shape)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    if process.returncode == 0 and process.stdout.strip().endswith("right"):
        return ""
    if "wrong" in process.stdout:
        return "gives wrong numbers"
    return "crashes the process"


def _try_product(b, t, k, *, n):
    """Print whether a product is right; the process may crash as it ends."""
    import numpy as np
    import tensorflow as tf

    random = np.random.default_rng(0)
    left = random.normal(size=(b, 1, t, k)).astype("float32")
    right = random.normal(size=(k, n)).astype("float32")
    with tf.device("/CPU:0"):
        product = tf.matmul(left, right).numpy()
    gap = np.abs(product - left @ right).max()
    print("right" if gap < 1e-3 else "wrong", flush=True)


if __name__ == "__main__":
    _try_product(*map(int, sys.argv[1:4]), n=int(sys.argv[4]))
