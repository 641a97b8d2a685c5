"""A trial of oneDNN's known matmul defect, run in a process of its own.

A product of shapes [b, 1, t, k] and [k, n] returns garbage or corrupts the
heap in some builds; the harm may show only when the process ends. Four
numbers on the command line are the b, t, k, n to try; else a few are tried.
"""

import sys

SHAPES = [(2, 3, 4, 5), (8, 16, 32, 32), (64, 16, 64, 32)]


def main():
    """Print "right" or "wrong", unless it crashes."""
    import numpy as np
    import tensorflow as tf

    random = np.random.default_rng(0)
    worst = 0.0
    wanted = tuple(int(size) for size in sys.argv[1:5])
    for b, t, k, n in [wanted] if wanted else SHAPES:
        left = random.normal(size=(b, 1, t, k)).astype("float32")
        right = random.normal(size=(k, n)).astype("float32")
        with tf.device("/CPU:0"):
            product = tf.matmul(left, right).numpy()
        gap = np.abs(product - left @ right).max()
        worst = max(worst, float(gap)) if np.isfinite(gap) else float("inf")
    print("right" if worst < 1e-3 else "wrong", flush=True)


if __name__ == "__main__":
    sys.exit(main())
