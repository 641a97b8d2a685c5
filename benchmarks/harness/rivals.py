"""Who is compared: one line a rival."""

import dataclasses

CLIPPED = "clipped"
MATERIALISED = "materialised"
BOTH = (CLIPPED, MATERIALISED)
#: With TorchJD alone, beside `ByTask`.
BY_TASK = "by_task"
#: Plain and clipped `fit` steps of the models of `tests/real_models.py`.
REAL_MODELS = "real_models"
#: By `benchmarks/steps/gpu.py` alone.
ON_GPU = "on_gpu"
#: Beside the clipped step, over batch sizes.
GROWTH = "growth"


@dataclasses.dataclass(frozen=True)
class Rival:
    """One way to do the task.

    Attributes:
        label: its name in tables.
        framework: the environment and the worker module it runs in.
        tasks: which of the tasks it can do.
        process: rivals with the same entry share a worker process; "eigen"
            is one in which TensorFlow runs without oneDNN.
        skip: model name to the reason why it is left out.
    """

    label: str
    framework: str
    tasks: tuple = BOTH
    process: str = ""
    skip: dict = dataclasses.field(default_factory=dict)


_SQUARE = "takes n² backward passes"
_SLOW_XLA = "takes minutes to compile or seconds to run"
_JACOBIAN = dict.fromkeys(("cifar10", "lstm", "transformer"), _SQUARE)
_XLA_MAP = dict.fromkeys(("cifar10", "lstm"), _SLOW_XLA)
_NO_NORM = {"transformer": "no LayerNormalization"}

RIVALS = {
    "plain": Rival("Keras, plain", "tensorflow"),
    "plain_xla": Rival("Keras, plain, XLA", "tensorflow", (CLIPPED,)),
    "ours": Rival("keras_pergrad", "tensorflow"),
    "ours_xla": Rival("keras_pergrad, XLA", "tensorflow"),
    # Without Keras's iterator, metrics and logs, as the peers' steps are.
    "ours_bare": Rival("keras_pergrad, bare step", "tensorflow", (CLIPPED,)),
    "ours_statistics": Rival(
        "keras_pergrad, statistics only", "tensorflow", (CLIPPED,)
    ),
    "ours_accumulated": Rival(
        "keras_pergrad, microbatches of 16", "tensorflow", (GROWTH,)
    ),
    "plain_replicas": Rival(
        "Keras, plain, two replicas",
        "tensorflow",
        (GROWTH, ON_GPU),
        process="replicas",
    ),
    "ours_replicas": Rival(
        "keras_pergrad, two replicas",
        "tensorflow",
        (GROWTH, ON_GPU),
        process="replicas",
    ),
    "loop": Rival("TF, loop", "tensorflow"),
    "map_fn": Rival("TF, map_fn", "tensorflow"),
    "jacobian": Rival("TF, jacobian", "tensorflow", skip=_JACOBIAN),
    # In a process of its own: it may bring the process down on some models.
    "vectorized_map": Rival(
        "TF, vectorized_map", "tensorflow", process="vectorized_map"
    ),
    "vectorized_map_eigen": Rival(
        "TF, vectorized_map, oneDNN off", "tensorflow", process="eigen"
    ),
    "vectorized_map_xla": Rival(
        "TF, vectorized_map, XLA",
        "tensorflow",
        process="vectorized_map",
        skip=_XLA_MAP,
    ),
    "torch_plain": Rival("torch, plain", "torch"),
    "torch_compiled": Rival("torch, compiled", "torch", (ON_GPU,)),
    "opacus": Rival("Opacus, hooks", "torch"),
    "opacus_ghost": Rival("Opacus, ghost", "torch", (CLIPPED,)),
    "torch_func": Rival("torch.func", "torch"),
    "backpack": Rival("BackPACK", "torch", skip=_NO_NORM),
    "jax_plain": Rival("JAX, plain", "jax"),
    "jax_vmap": Rival("JAX, vmap", "jax"),
    "jax_scan": Rival("JAX, scan", "jax", (CLIPPED,)),
    "jax_privacy": Rival("jax_privacy, Keras", "jax_privacy", (ON_GPU,)),
    "tf_privacy_fast": Rival("TF Privacy, fast", "tf_privacy", (CLIPPED,)),
    "tf_privacy": Rival("TF Privacy", "tf_privacy", (CLIPPED,)),
}

#: Rivals that compute the batch gradient only, and ours: not peers.
REFERENCES = ("plain", "plain_xla", "torch_plain", "jax_plain")
OURS = ("ours", "ours_xla", "ours_bare", "ours_statistics")
