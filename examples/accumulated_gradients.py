"""A batch that does not fit in memory, without clipping or privacy.

Trains with a batch of 2,048, whole and in microbatches of 32, each in a
process of its own, and draws how much memory each has taken. Both train the
same: the weights are compared, too.

    python examples/accumulated_gradients.py
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import json
import pathlib
import resource
import subprocess
import sys

OUTPUT = pathlib.Path(__file__).parent / "output"
BATCH, PART = 2048, 32
MEGABYTE = 2**20 if sys.platform == "darwin" else 2**10  # what ru_maxrss counts


def train(kind):
    """One step; the peak memory of this process in MB, and the weights."""
    import keras
    import numpy as np

    import keras_pergrad as kpg

    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).normal(size=(BATCH, 64, 32))
    x = x.astype("float32")
    inputs = keras.Input((64, 32))
    h = inputs
    for _ in range(3):
        h = keras.layers.Dense(256, activation="relu")(h)
    outputs = keras.layers.Dense(1)(keras.layers.Flatten()(h))
    model = kpg.PerGradModel(inputs, outputs)
    mode = "batch"
    if kind == "parts":
        mode = kpg.Accumulated(microbatch_size=PART)
    model.compile("sgd", "mse", gradient_mode=mode)
    model.fit(x, x[:, 0, :1], batch_size=BATCH, verbose=0)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MEGABYTE
    first = [float(v) for v in model.get_weights()[0].ravel()[:100]]
    return {"peak": peak, "weights": first}


def measure(kind):
    """`train` in a process of its own."""
    command = [sys.executable, __file__, kind]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout.decode().splitlines()[-1])


def draw(peaks):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6, 2))
    bars = axis.barh(list(peaks), list(peaks.values()), height=0.5)
    axis.bar_label(bars, fmt="%.0f MB", padding=3)
    axis.set(xlabel=f"peak memory with a batch of {BATCH}")
    axis.margins(x=0.15)
    axis.invert_yaxis()
    OUTPUT.mkdir(exist_ok=True)
    path = OUTPUT / "accumulated_gradients.png"
    figure.savefig(path, dpi=120, bbox_inches="tight")
    return path


def main():
    if len(sys.argv) > 1:
        print(json.dumps(train(sys.argv[1])))
        return
    whole, parts = measure("whole"), measure("parts")
    pairs = zip(whole["weights"], parts["weights"], strict=True)
    apart = max(abs(a - b) for a, b in pairs)
    peaks = {"whole": whole["peak"], f"in parts of {PART}": parts["peak"]}
    print(f"batch of {BATCH}, peak memory of the process:")
    for name, peak in peaks.items():
        print(f"  {name:<14} {peak:5.0f} MB")
    print(f"  the weights differ by {apart:.0e}")
    print(f"Picture: {draw(peaks).relative_to(OUTPUT.parent.parent)}")


if __name__ == "__main__":
    main()
