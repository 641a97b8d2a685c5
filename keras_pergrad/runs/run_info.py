"""The facts about a run, for a comparison."""

import dataclasses
import json
import time

from keras_pergrad.runs.sketch import VARIABLE_SKETCH_SIZE

FORMAT = 3
#: Gradients can be compared where all of these are equal.
COMPARABLE_FIELDS = (
    "architecture",
    "loss",
    "probe",
    "probe_samples",
    "sketch_size",
    "variable_sketch_size",
)


@dataclasses.dataclass
class RunInfo:
    """The facts about a run that a comparison needs.

    Attributes:
        run: the name of the run and of its directory.
        architecture: fingerprint of the model: layer classes and shapes.
        probe: fingerprint of the probe batch.
        probe_samples: how many samples the probe batch has.
        variables: one dict a trainable variable: its `path` and `shape`.
        sketch_size: numbers in the sketch of the whole gradient.
        variable_sketch_size: numbers in the sketch of one variable.
        settings: setting of a layer → value, where known.
        versions, platform: of the software and the machine, by name.
        machine: a short hash, equal for the runs of one machine.
        devices: the devices TensorFlow sees.
        device: the kind that computes: "CPU", "GPU" or "METAL".
        seed: the seed that the user set, or None.
        optimizer, gradient_mode: their configs, or None.
        loss: one dict a compiled loss, or None.
        precision: the layers' dtype policy by name, or a list of them.
        jit_compile, run_eagerly: how the training step is run.
        op_determinism: whether TensorFlow was set to be deterministic.
        batch_size, steps_per_epoch: of `fit`; None where it is not known.
        tags: the user's labels for the run, for grouping.
        created: seconds since 1970.

    Example:

    >>> from keras_pergrad import runs
    >>> info = runs.RunInfo(
    ...     run="seed0",
    ...     architecture="a1",
    ...     probe="b2",
    ...     probe_samples=128,
    ...     variables=[{"path": "dense/kernel", "shape": [3, 1]}],
    ...     sketch_size=256,
    ...     seed=0,
    ... )
    >>> info.device, info.tags
    ('CPU', {})
    """

    run: str
    architecture: str
    probe: str
    probe_samples: int
    variables: list
    sketch_size: int
    variable_sketch_size: int = VARIABLE_SKETCH_SIZE
    settings: dict = dataclasses.field(default_factory=dict)
    versions: dict = dataclasses.field(default_factory=dict)
    platform: dict = dataclasses.field(default_factory=dict)
    machine: str | None = None
    devices: list = dataclasses.field(default_factory=list)
    device: str = "CPU"
    seed: int | None = None
    optimizer: dict | None = None
    gradient_mode: dict | None = None
    loss: list | None = None
    precision: str | list | None = None
    jit_compile: bool | None = None
    run_eagerly: bool | None = None
    op_determinism: bool | None = None
    batch_size: int | None = None
    steps_per_epoch: int | None = None
    tags: dict = dataclasses.field(default_factory=dict)
    created: float = dataclasses.field(default_factory=time.time)

    def to_json(self):
        """Return the fields as JSON; other types become their `str`."""
        return json.dumps(dataclasses.asdict(self), default=str)
