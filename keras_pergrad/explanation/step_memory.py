"""Measurements of a model's training steps, by running some.

For their peak memory they run, on the CPU, in a process of their own, which
loads the saved model; the memory that TensorFlow keeps from earlier steps would
hide them in this one. On a CUDA GPU a loaded copy runs here, since this process
holds the card. Kernels are counted here as well.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import zipfile

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.aggregations.clipping import ClippedMean
from keras_pergrad.common.batches import has_composite, is_composite
from keras_pergrad.common.machine import (
    accelerators,
    as_text,
    free_bytes,
    resident_bytes,
)
from keras_pergrad.common.registry import serialize
from keras_pergrad.explanation import peak
from keras_pergrad.keras_internals.models.parts import (
    require_inputs,
    symbolic_inputs,
)
from keras_pergrad.keras_internals.state.model import preserve_random_state
from keras_pergrad.modes import Batch, Vectorized

_FREE_SHARE = 0.9  # of the free memory


@dataclasses.dataclass(frozen=True)
class StepMemory:
    """The peak memory of training steps, in bytes; prints as one line.

    Three steps were run, compiled as in training, also by XLA. On the CPU
    `rise` is how far the resident size of a process of its own rose above what
    it held with the model loaded; where TensorFlow sees a CUDA GPU, how far
    TensorFlow's counter of the GPU's memory rose. Included are two batches
    (one in use, the next one made), the traced graph, scratch memory, metrics
    and the optimizer's variables, if the model has not made them yet. Not
    included are callbacks. On the CPU the rise differs from process to process
    by some percent.

    Attributes:
        batch_size: the number of samples.
        mode: the gradient mode, as it prints.
        rise: the peak, less what is held before the first step.
        process: what the process that asked has resident, or holds of the
            GPU's memory; None: the system does not say (not Linux).
        device: the GPU on which it was measured; None: the CPU.
    """

    batch_size: int
    mode: str
    rise: int
    process: int | None
    device: str | None = None

    @property
    def peak(self) -> int:
        """The peak of the process that asked, if it ran such steps."""
        return self.rise + (self.process or 0)

    def __str__(self) -> str:
        total = ""
        if self.process is not None:
            total = f"; with what it holds now: {as_text(self.peak)}"
        return (
            f"Peak of a step of {self.batch_size} samples, {self.mode}, "
            f"measured on {self.device or 'the CPU'}: {as_text(self.rise)} "
            f"above what the process holds{total}"
        )

    # A prompt shows this.
    __repr__ = __str__


class SavedModel:
    """A model saved to a folder, whose steps are measured; a context.

    Args:
        model: a built `keras.Model`.
        x, y: the rows that batches repeat; None: zeros.
        rows: the most of them that are needed.
        jit_compile: whether the steps are compiled by XLA; None: as the model
            is.

    Attributes:
        process: what this process holds; None: the system does not say.
        free: what steps may take beside it; None: not known, as on a GPU.

    Raises:
        ValueError: the model has several replicas, cannot be saved, or has
            inputs of unknown shape, or sparse or ragged ones.
    """

    def __init__(self, model, x=None, y=None, *, rows=1, jit_compile=None):
        _require_one_replica(model)
        _require_dense(model, x, y)
        device = cuda_device()
        if device is None:
            self.process, self.free = resident_bytes(), free_bytes()
            if self.free is not None:  # the rest is for everything else
                self.free = int(_FREE_SHARE * self.free)
        else:
            memory = tf.config.experimental.get_memory_info(device)
            self.process, self.free = memory["current"], None
        self._model, self._jit_compile = model, jit_compile
        if x is None:
            x = tf.nest.map_structure(_zeros, input_specs(model, 1, None))
        batch = (x,)
        batch = batch if y is None else (*batch, y)
        self._rows = tf.nest.map_structure(
            lambda t: _first_rows(t, rows), batch
        )

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
            self._folder = pathlib.Path(stack.enter_context(folder))
            try:
                self._model.save(self._folder / peak.MODEL)
            except Exception as error:  # whatever a user's class raises
                raise ValueError(_NOT_SAVED.format(self._model.name)) from error
            # Data sets stack lists.
            rows = keras.tree.lists_to_tuples(self._rows)
            rows = tf.data.Dataset.from_tensors(rows)
            with preserve_random_state():
                rows.save(str(self._folder / peak.ROWS))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self._stack.close()

    def step(self, mode, n, limit=None):
        """Measure steps of n samples; None: they take more than there is.

        Args:
            mode: a `GradientMode`.
            n: the number of samples.
            limit: bytes that the rise may reach; None: all that are free.

        Raises:
            ValueError: the model cannot be loaded or trained.
        """
        limits = [size for size in (limit, self.free) if size is not None]
        request = self._request(mode, n, min(limits, default=None))
        device = cuda_device()
        if device is None:
            rise = self._in_process(request)
        else:
            rise = self._in_this_process(request, device)
        if rise is None or (limit is not None and rise > limit):
            return None
        return StepMemory(
            n, repr(mode), rise, process=self.process, device=device
        )

    def _request(self, mode, n, limit):
        compiled_mode = getattr(self._model, "_gradient_mode", None)
        is_plain = compiled_mode is None and isinstance(mode, Batch)
        config = None if mode is compiled_mode or is_plain else serialize(mode)
        return {
            "samples": n,
            "limit": limit,
            "mode": config,
            "jit_compile": self._jit_compile,
            "floatx": keras.config.floatx(),
            "modules": self._modules(json.dumps(config)),
        }

    def _modules(self, mode):
        """List the modules of the registered parts of the model and a mode."""
        with zipfile.ZipFile(self._folder / peak.MODEL) as archive:
            model = archive.read("config.json").decode()
        registered = keras.saving.get_custom_objects()
        names = set(re.findall(r'"([^"]+)"', f"{mode} {model}"))
        modules = {registered[n].__module__ for n in names & registered.keys()}
        return sorted(modules - {"__main__"})

    def _in_process(self, request):
        if sys.platform == "win32":
            raise ValueError(
                "The memory of steps is measured on Linux and macOS, or on a "
                f"CUDA GPU. Received: the platform {sys.platform!r}"
            )
        arguments = str(self._folder), json.dumps(request)
        child = subprocess.run(
            [sys.executable, "-m", peak.__name__, *arguments],
            capture_output=True,
            text=True,
            check=False,
            env={
                "TF_CPP_MIN_LOG_LEVEL": "2",
                **os.environ,
                # The process imports the modules that define the model.
                "PYTHONPATH": os.pathsep.join(sys.path),
                "CUDA_VISIBLE_DEVICES": "-1",
            },
        )
        if child.returncode == -signal.SIGKILL:  # as systems do without memory
            return None
        name = self._model.name
        try:
            answer = json.loads(child.stdout.splitlines()[-1])
        except (IndexError, ValueError):
            last_lines = " ".join(child.stderr.splitlines()[-3:])
            code = child.returncode
            raise ValueError(_ENDED.format(name, code, last_lines)) from None
        if "error" in answer:
            text = _FAILED if answer["loaded"] else _NOT_LOADED
            raise ValueError(text.format(name, answer["error"]))
        return answer["rise"]

    def _in_this_process(self, request, device):
        try:
            with preserve_random_state():
                meter = peak.GpuMeter(device)
                return peak.measure_rise(self._folder, request, meter)
        except tf.errors.ResourceExhaustedError:
            return None
        except peak.NotLoadedError as error:
            text = _NOT_LOADED.format(self._model.name, error)
            raise ValueError(text) from error


def mode_of(model):
    """Return the mode whose memory is measured where none is named."""
    compiled_mode = getattr(model, "_gradient_mode", Batch())
    has_own_step = peak.overrides(model, "train_step")
    if has_own_step or not isinstance(compiled_mode, Batch):
        return compiled_mode
    return Vectorized(ClippedMean(1.0))


def cuda_device():
    """Return the name of the GPU that a step runs on, such as "GPU:0"; or None.

    TensorFlow counts the memory of CUDA devices only, and places the ops of a
    step on the first.
    """
    names = (d.name for d in accelerators() if d.platform == "CUDA")
    return next(names, None)


def too_large(model, n):
    """Return the error of steps that need more memory than there is."""
    return MemoryError(
        f"A step of {n} samples of model {model.name!r} needs more memory than "
        "is free here. Ask for fewer samples."
    )


def input_specs(model, batch_size, x):
    """Return the `TensorSpec`s of so many samples, of a batch or a model."""
    if x is not None:
        require_inputs(model, x)
        return tf.nest.map_structure(lambda t: _spec(t, batch_size), x)
    inputs = symbolic_inputs(model)
    if inputs is None:
        flat = getattr(model, "inputs", None) or [None]
        inputs = flat if len(flat) > 1 else flat[0]
    if inputs is None:
        raise ValueError(
            f"Model {model.name!r} does not know the shapes of its inputs. "
            "Pass a batch: explain(model, batch_size, x=x)."
        )
    return tf.nest.map_structure(lambda t: _spec(t, batch_size), inputs)


def build_on_zeros(model, batch):
    """Build a model that is not built yet, by a call on zeros."""
    if not model.built:
        model(
            tf.nest.map_structure(
                lambda s: tf.zeros(
                    [1 if d is None else d for d in s.shape], s.dtype
                ),
                batch,
            )
        )


def _zeros(spec):
    """Return one sample of zeros of an input."""
    if None in spec.shape:
        raise ValueError(
            "The memory of a step is measured by running it, and the shape "
            f"{tuple(spec.shape)} of an input has an unknown length: expected "
            "known ones. Pass a batch as `x`: explain(model, batch_size, x=x)."
        )
    return tf.zeros(spec.shape, spec.dtype)


def _spec(tensor, n):
    """Get the type of `n` samples like those in a tensor, perhaps symbolic."""
    if not isinstance(tensor, keras.KerasTensor) and not is_composite(tensor):
        tensor = tf.convert_to_tensor(tensor)
    shape = [n, *tensor.shape[1:]]
    if isinstance(tensor, tf.SparseTensor) or getattr(tensor, "sparse", False):
        return tf.SparseTensorSpec(shape, tensor.dtype)
    if isinstance(tensor, tf.RaggedTensor) or getattr(tensor, "ragged", False):
        return tf.RaggedTensorSpec(shape, tensor.dtype)
    return tf.TensorSpec(shape, tensor.dtype)


def _first_rows(tensor, n):
    """Return the first n rows of an array or tensor."""
    rows = tensor[:n]
    if isinstance(rows, np.ndarray) and rows.dtype == "float64":
        rows = rows.astype(keras.config.floatx())  # as `fit` does
    return tf.convert_to_tensor(rows)


def _require_one_replica(model):
    count = model.distribute_strategy.num_replicas_in_sync
    if count > 1:
        raise ValueError(
            f"Model {model.name!r} belongs to a tf.distribute strategy with "
            f"{count} replicas: expected a model of one device, whose memory "
            "can be measured. Make the same model outside of the strategy's "
            "scope; each replica takes a part of the batch."
        )


def _require_dense(model, x, y):
    specs = tf.nest.flatten(input_specs(model, 1, x))
    is_dense = all(isinstance(spec, tf.TensorSpec) for spec in specs)
    if not is_dense or has_composite(tf.nest.flatten(y)):
        raise ValueError(
            f"The memory of a step of model {model.name!r} is measured with "
            "dense inputs: expected arrays or dense tensors. Received sparse "
            "or ragged ones. Pass dense ones of the same sizes to a model of "
            "dense inputs, which needs at least as much."
        )


_MEASURING = "Model {!r} is measured in steps of a saved and loaded copy"
_REGISTER_HINT = (
    " Expected classes and functions with get_config() that are registered "
    "(keras.saving.register_keras_serializable) in a module that can be "
    "imported, not in the script or notebook that runs."
)
_NOT_SAVED = f"{_MEASURING}, and it cannot be saved.{_REGISTER_HINT}"
_NOT_LOADED = f"{_MEASURING}, and it cannot be loaded: {{}}{_REGISTER_HINT}"
_FAILED = (
    f"{_MEASURING}, and these failed: {{}}\n(Pass `x` and `y`, if they are not "
    "given: else they are zeros.)"
)
_ENDED = f"{_MEASURING}. Their process ended with code {{}}: {{}}"
