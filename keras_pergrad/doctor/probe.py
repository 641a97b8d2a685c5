"""Trials of TensorFlow from the inside, run in a process of its own.

Each result is printed at once, one JSON object per line, so that results from
before a crash are kept. With `matmul` on the command line, a known defect of
oneDNN is tried instead.
"""

import json
import sys

from keras_pergrad.doctor import cuda

#: Sizes b, t, k, n of products to try.
_SHAPES = [(2, 3, 4, 5), (8, 16, 32, 32), (64, 16, 64, 32)]


def print_fact(step, **facts):
    """Print what is known of one step."""
    print("PROBE " + json.dumps({"step": step, **facts}), flush=True)


def print_attempt(step, probe):
    """Print what `probe` returns, or the error it raised."""
    try:
        print_fact(step, **probe())
    except Exception as error:  # whatever it is, it belongs in the report
        text = str(error).strip().splitlines()
        print_fact(step, error=f"{type(error).__name__}: {(text or [''])[0]}")


def devices():
    """Return how many CPUs TensorFlow sees, and which accelerators."""
    import tensorflow as tf

    from keras_pergrad.common.machine import accelerators

    cpus = tf.config.list_physical_devices("CPU")
    accelerator_facts = [
        {"name": d.name, "platform": d.platform} for d in accelerators()
    ]
    return {"cpus": len(cpus), "accelerators": accelerator_facts}


def xla(device):
    """Whether XLA compiles for a device."""
    import tensorflow as tf

    with tf.device(f"/device:{device}"):
        double = tf.function(lambda x: x + x, jit_compile=True)
        return {"works": float(double(tf.constant(1.0))) == 2.0}


def training(device):
    """Return losses of a two-layer model; each device has the same weights."""
    import keras
    import numpy as np
    import tensorflow as tf

    # Products of ten bits would differ from the CPU's by more than rounding.
    tf.config.experimental.enable_tensor_float_32_execution(False)
    random = np.random.default_rng(0)
    x = random.normal(size=(32, 8)).astype("float32")
    y = x[:, :1] - 2 * x[:, 1:2]
    shapes = [(8, 16), (16,), (16, 1), (1,)]
    with tf.device(f"/device:{device}"):
        hidden = keras.layers.Dense(16, activation="relu")
        layers = [keras.Input((8,)), hidden, keras.layers.Dense(1)]
        model = keras.Sequential(layers)
        model.set_weights([random.normal(0, 0.3, shape) for shape in shapes])
        sgd = keras.optimizers.SGD(0.05)
        model.compile(sgd, "mse", jit_compile=False)  # type: ignore[arg-type]
        losses = [float(model.train_on_batch(x, y)) for _ in range(3)]
    return {"device": device, "losses": losses}


def main():
    """Run all probes, those most likely to crash last."""
    import tensorflow as tf

    print_fact("tensorflow", version=tf.__version__)
    import keras

    backend = keras.backend.backend()
    print_fact("keras", version=keras.__version__, backend=backend)
    print_attempt("devices", devices)
    print_attempt("training", lambda: training("CPU:0"))
    from keras_pergrad.common.machine import accelerators

    for device in accelerators():
        print_attempt("training", lambda name=device.name: training(name))
        if device.platform == "CUDA":
            print_attempt("xla_gpu", lambda name=device.name: xla(name))
    print_attempt("xla", lambda: xla("CPU:0"))
    print_attempt("cuda", cuda.facts)
    print_fact("done")


def matmul(*sizes):
    """Print "right" or "wrong" for products of shapes, unless it crashes."""
    # A product of shapes [b, 1, t, k] and [k, n] returns garbage or corrupts
    # the heap in some builds; the harm may show only when the process ends.
    import numpy as np
    import tensorflow as tf

    random = np.random.default_rng(0)
    worst = 0.0
    for b, t, k, n in [sizes] if sizes else _SHAPES:
        left = random.normal(size=(b, 1, t, k)).astype("float32")
        right = random.normal(size=(k, n)).astype("float32")
        with tf.device("/CPU:0"):
            product = tf.matmul(left, right).numpy()
        gap = np.abs(product - left @ right).max()
        worst = max(worst, float(gap)) if np.isfinite(gap) else float("inf")
    print("right" if worst < 1e-3 else "wrong", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["matmul"]:
        matmul(*map(int, sys.argv[2:]))
    else:
        main()
