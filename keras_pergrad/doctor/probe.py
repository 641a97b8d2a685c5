"""Trials of TensorFlow, in a process of its own, which may crash.

Each finding is printed at once, as one line of JSON, so that those from before
a crash are kept.
"""

import importlib
import json

from keras_pergrad.doctor import cuda
from keras_pergrad.doctor.versions import ERROR, NOTE, OK, Finding

MARK, DONE = "PROBE ", "PROBE done"


def main():
    """Print what each trial finds."""
    try:
        importlib.import_module("tensorflow")
        keras = importlib.import_module("keras")
    except Exception as error:  # whatever it is, it belongs in the report
        _print(_stopped("import tensorflow", error))
    else:
        backend = keras.backend.backend()
        if backend != "tensorflow":
            message = f"expected tensorflow. Received: {backend}"
            fix = "export KERAS_BACKEND=tensorflow, or edit ~/.keras/keras.json"
            _print(Finding(ERROR, "Keras backend", message, fix=fix))
        # Those most likely to crash come last.
        for trial in _devices, _training, _xla, _cuda:
            try:
                for finding in trial():
                    _print(finding)
            except Exception as error:
                _print(_stopped(trial.__name__.strip("_"), error))
    print(DONE, flush=True)


def _print(finding):
    print(MARK + json.dumps(vars(finding)), flush=True)


def _stopped(subject, error):
    """Return the finding that something raised an error."""
    [first, *_] = [*str(error).strip().splitlines(), ""]
    return Finding(ERROR, subject, f"{type(error).__name__}: {first}")


def _devices():
    """Yield which accelerators TensorFlow lists."""
    from keras_pergrad.common.machine import accelerators

    names = [f"{d.name} ({d.platform})" for d in accelerators()]
    is_metal = any(d.is_metal for d in accelerators())
    remark = "; this is Metal" if is_metal else "" if names else " only"
    yield Finding(OK, "devices", ", ".join(["CPU", *names]) + remark)


def _training():
    """Yield whether a two-layer model trains on each device, as on the CPU."""
    from keras_pergrad.checking import numerics
    from keras_pergrad.common.machine import accelerators

    reference = None
    for device in ["CPU:0", *(d.name for d in accelerators())]:
        try:
            losses = _losses(device)
        except Exception as error:
            yield _stopped(f"training on {device}", error)
            continue
        if reference is None:
            reference = losses
            text = ", ".join(f"{loss:.4f}" for loss in losses)
            message = f"a two-layer model trains on {device} (loss {text})"
            yield Finding(OK, "training", message)
            continue
        verdict = numerics.judge(reference, losses, "float32", terms=32)
        if verdict.ok:
            message = f"the same loss on {device} (to {verdict.relative:.0e})"
            yield Finding(OK, "training", message)
        else:
            message = (
                f"the loss on {device} differs from the CPU's by "
                f"{verdict.error:.3g}: not rounding"
            )
            fix = "keras_pergrad.diagnose.compare_devices names the op"
            yield Finding(ERROR, "training", message, fix=fix)


def _losses(device):
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
        return [float(model.train_on_batch(x, y)) for _ in range(3)]


def _xla():
    """Yield whether XLA compiles for the CPU, and for CUDA's GPUs."""
    from keras_pergrad.common.machine import accelerators

    cards = [d.name for d in accelerators() if d.platform == "CUDA"]
    for device in [*cards, "CPU:0"]:
        error = _xla_error(device)
        if not error:
            yield Finding(OK, "XLA", f"works on {device}")
            continue
        level = ERROR if device in cards else NOTE
        fix = "compile(..., jit_compile=False)"
        yield Finding(level, "XLA", f"fails on {device}: {error}", fix=fix)


def _xla_error(device):
    """Return why XLA fails on a device, or `""`."""
    import tensorflow as tf

    with tf.device(f"/device:{device}"):
        double = tf.function(lambda x: x + x, jit_compile=True)
        try:
            right = float(double(tf.constant(1.0))) == 2.0
        except Exception as error:
            return _stopped("XLA", error).message
    return "" if right else "wrong result"


def _cuda():
    """Yield what is to say of NVIDIA cards."""
    yield from cuda.judge(cuda.facts())


if __name__ == "__main__":
    main()
