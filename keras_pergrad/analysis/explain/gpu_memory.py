"""The peak memory of a step on a GPU, read from TensorFlow's counter."""

import tensorflow as tf

from keras_pergrad.common.devices import accelerators
from keras_pergrad.common.free_memory import resident_bytes
from keras_pergrad.keras_internals.model_parts import compiles_by_xla
from keras_pergrad.keras_internals.model_state import (
    assigned_variables,
    kept,
    random_state_kept,
)


def cuda_device():
    """Return the name of the GPU that a step runs on, such as "GPU:0"; or None.

    TensorFlow counts the memory of CUDA devices only, and places the ops of a
    step on the first.
    """
    names = (d.name for d in accelerators() if d.platform == "CUDA")
    return next(names, None)


def bytes_in_use():
    """Return what is held now: of the GPU's memory, or of the process."""
    device = cuda_device()
    if device is None:
        return resident_bytes()
    return tf.config.experimental.get_memory_info(device)["current"]


def peak_rise(device, step, mode, model, n):
    """Run a step of `n` samples; return by how many bytes its peak rose.

    `step`: a `StepMemory`. All that the step assigns gets its value back.

    Raises:
        ValueError: a length of the inputs is not known.
        tf.errors.ResourceExhaustedError: the step does not fit.
    """
    jit_compile = model.compiled and model.jit_compile
    if jit_compile == "auto":
        jit_compile = compiles_by_xla(model)
    concrete = step.trace(mode, n, bool(jit_compile))
    (specs,), _ = concrete.structured_input_signature
    batch = tf.nest.map_structure(_zeros, specs)
    with random_state_kept(), kept(assigned_variables(concrete)):
        counter = tf.config.experimental
        held = counter.get_memory_info(device)["current"]
        counter.reset_memory_stats(device)
        for _ in range(2):  # the first run makes what later ones keep
            concrete(batch)
        return max(0, counter.get_memory_info(device)["peak"] - held)


def _zeros(spec):
    """Return a batch of zeros of a spec."""
    if None in spec.shape:
        raise ValueError(
            "A step's memory is measured on a GPU by running it, and the shape "
            f"{tuple(spec.shape)} of an input or target has an unknown length: "
            "expected known ones. Pass a batch as `x`: "
            "explain(model, batch_size, x=x)."
        )
    dense = tf.zeros(spec.shape, spec.dtype)
    if isinstance(spec, tf.SparseTensorSpec):
        return tf.sparse.from_dense(dense)
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensor.from_tensor(dense, ragged_rank=spec.ragged_rank)
    return dense
