"""Measurements of the memory of a saved model's training steps.

    python -m keras_pergrad.explanation.peak FOLDER REQUEST

measures their memory in a process of its own and prints a line of JSON. The
folder holds `model.keras` and `rows`, a data set of one batch.
"""

import contextlib
import gc
import importlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import warnings
from typing import Any

import keras
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad import modes
from keras_pergrad.common.machine import resident_bytes
from keras_pergrad.keras_internals.models.parts import (
    call_model,
    compile_arguments,
)
from keras_pergrad.keras_internals.tensorflow.settings import inspecting

MODEL, ROWS = "model.keras", "rows"
STEPS = 3  # the first makes what later ones keep
_LOOK_INTERVAL = 0.01  # between two looks at the resident size


class NotLoadedError(ValueError):
    """The saved model cannot be loaded."""


class ResidentMeter:
    """How far the resident size of this process rises, in bytes.

    A process whose rise passes the limit ends itself, as the system would end
    it, or another one, where no memory is left.
    """

    def __init__(self, limit):
        self._limit = limit

    def start(self):
        """Begin to measure: what is held now does not count."""
        gc.collect()
        # The peak of loading the model does not count either. Where it cannot
        # be forgotten the rise may be too large, and not too small.
        with contextlib.suppress(OSError):
            pathlib.Path("/proc/self/clear_refs").write_text("5")
        self._start_bytes = _resident_now()
        threading.Thread(target=self._watch, daemon=True).start()

    def rise(self):
        """Return the peak since the start, less what was held then."""
        return max(0, _peak_resident() - self._start_bytes)

    def _watch(self):
        while self._limit is not None:
            size = resident_bytes()
            if size is None:  # not Linux
                return
            if size - self._start_bytes > self._limit:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(_LOOK_INTERVAL)


class GpuMeter:
    """How far TensorFlow's counter of a GPU's memory rises, in bytes."""

    def __init__(self, device):
        self._device = device

    def start(self):
        """Begin to measure: what is held now does not count."""
        gc.collect()
        counter = tf.config.experimental
        self._start_bytes = counter.get_memory_info(self._device)["current"]
        counter.reset_memory_stats(self._device)

    def rise(self):
        """Return the peak since the start, less what was held then."""
        info = tf.config.experimental.get_memory_info(self._device)
        return max(0, info["peak"] - self._start_bytes)


def measure_rise(folder, request, meter):
    """Run steps of a saved model; return how far the meter rose."""
    model, batches = _load(folder, request)
    meter.start()
    with inspecting():
        # Not the model's own `fit`, which may ask for private batches.
        options = {"steps_per_epoch": STEPS, "shuffle": False, "verbose": 0}
        keras.Model.fit(model, batches, **options)
    return meter.rise()


def _load(folder, request):
    """Return a saved model, ready for training, and a data set of batches.

    `request`: a dict of "samples"; "mode", the config of a gradient mode, or
    None for the compiled one; "jit_compile", or None likewise; "modules" to
    import, which define what the model is made of.

    Raises:
        NotLoadedError: the model cannot be loaded.
    """
    folder = pathlib.Path(folder)
    try:
        for name in request["modules"]:
            importlib.import_module(name)
        with warnings.catch_warnings(action="ignore"):
            # An optimizer may have no variables yet.
            model = keras.saving.load_model(folder / MODEL, safe_mode=False)
    except Exception as error:  # whatever a user's class raises
        raise NotLoadedError(f"{type(error).__name__}: {error}") from error
    model = _compile_with(model, request["mode"])
    if request["jit_compile"] is not None:
        model.jit_compile = request["jit_compile"]
    rows = next(iter(tf.data.Dataset.load(str(folder / ROWS))))
    if len(rows) == 1 and not overrides(model, "train_step"):
        rows = *rows, _targets(model, rows[0])
    limit = getattr(getattr(model, "aggregation_state", None), "limit", None)
    if limit is not None:  # of private training, which counts its updates
        model.aggregation_state.enter_phase(model.trainable_variables)
        limit.assign(keras.ops.full_like(limit, 2**62))
    return model, _repeated_batches(rows, request["samples"])


def overrides(model, *names):
    """Whether a class of the user's defines one of a model's methods."""
    return any(
        name in vars(kind)
        for kind in type(model).__mro__
        for name in names
        if kind.__module__.split(".")[0] not in ("keras", "keras_pergrad")
    )


def _compile_with(model, mode):
    """Return the model, compiled with a mode; None: as it is."""
    if not model.compiled:
        model.compile("sgd", "mse", jit_compile=False)
    if mode is None:
        return model
    arguments = dict(compile_arguments(model))
    if not isinstance(model, kpg.PerGradModel):
        model = kpg.PerGradModel.from_model(model)
    model.aggregation_state = None  # what was spent is the original's
    model.compile(**{**arguments, "gradient_mode": modes.get(mode)})
    return model


def _targets(model, x):
    """Return zeros like the outputs, or class numbers for a sparse loss."""
    is_sparse = "sparse" in _loss_names(model.loss).lower()
    function = tf.function(lambda x: call_model(model, x), autograph=False)
    outputs = function.get_concrete_function(x).structured_outputs

    def target(spec):
        shape = spec.shape[:-1] if is_sparse else spec.shape
        if None in shape[1:]:
            raise ValueError(
                f"The shape of the targets is not known: {shape}. Pass them "
                "as `y`."
            )
        rows = tf.nest.flatten(x)[0].shape[0]
        dtype = tf.int32 if is_sparse else spec.dtype
        return tf.zeros([rows, *shape[1:]], dtype)

    return tf.nest.map_structure(target, outputs)


def _loss_names(loss):
    """Return the names of losses in one text."""
    parts: Any = tf.nest.flatten(loss)
    return " ".join(
        part
        if isinstance(part, str)
        else getattr(part, "__name__", type(part).__name__)
        for part in parts
    )


def _repeated_batches(rows, n):
    """Return a data set of batches of n samples: the rows, again and again."""

    def batch(n):
        def repeat_rows(tensor):
            indices = tf.range(n, dtype=tf.int64) % tensor.shape[0]
            return tf.gather(tensor, indices)

        return tf.nest.map_structure(repeat_rows, rows)

    # Of no known size, as the batches of `fit` are.
    sizes = tf.data.Dataset.from_tensors(tf.constant(n, tf.int64)).repeat()
    return sizes.map(batch).prefetch(1)  # one is in use, the next is made


def _resident_now():
    """Return the resident size of this process."""
    size = resident_bytes()
    if size is None:  # not Linux
        command = ["ps", "-o", "rss=", "-p", str(os.getpid())]
        size = 1024 * int(subprocess.check_output(command))
    return size


def _peak_resident():
    """Return the highest resident size of this process so far."""
    try:
        # Not `ru_maxrss`, which begins at the size of the parent.
        lines = pathlib.Path("/proc/self/status").read_text().splitlines()
        (line,) = [line for line in lines if line.startswith("VmHWM:")]
        return 1024 * int(line.split()[1])
    except (OSError, ValueError):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else 1024 * peak


def main(folder, request):
    """Print the rise of this process, or what went wrong, as JSON."""
    request = json.loads(request)
    try:
        keras.config.set_floatx(request["floatx"])
        answer = {
            "rise": measure_rise(
                folder, request, ResidentMeter(request["limit"])
            )
        }
    except Exception as error:  # reported by the process that asks
        answer = {
            "error": f"{type(error).__name__}: {error}",
            "loaded": not isinstance(error, NotLoadedError),
        }
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
