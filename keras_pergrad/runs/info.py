"""What was run: the content of `run.json`."""

import dataclasses
import json
import os
import tempfile
import time

from keras_pergrad.runs.record import (
    FORMAT,
    INFO_FILE,
    VARIABLE_SKETCH_SIZE,
    Layout,
)


@dataclasses.dataclass
class RunInfo:
    """What was run, as far as a comparison needs it.

    Attributes:
        run: the run's name, that of its directory.
        architecture: fingerprint of the model.
        probe: fingerprint of the probe batch.
        probe_samples: how many samples the probe batch has.
        variables: one dict a trainable variable: its `path` and `shape`.
        sketch_size: numbers in the sketch of the whole gradient.
        variable_sketch_size: numbers in the sketch of one variable.
        versions, platform: of what computed the gradients, by name.
        machine: a short hash, equal for the runs of one machine.
        devices: the devices TensorFlow sees.
        device: the kind that computes: "CPU", "GPU" or "METAL".
        seed: the seed that the user set, or None.
        optimizer, gradient_mode: their configs, or None.
        loss: one dict a compiled loss; None where it is unknown, as in
            records of before it was written. So are the next ones.
        precision: the layers' dtype policy by name, or a list of them.
        jit_compile, run_eagerly: how the training step is run.
        op_determinism: whether TensorFlow was told to be deterministic.
        batch_size, steps_per_epoch: of `fit`.
        tags: what the user says of the run, for grouping.
        created: seconds since 1970.
        format: the version of the records' format.
    """

    run: str
    architecture: str
    probe: str
    probe_samples: int
    variables: list
    sketch_size: int
    variable_sketch_size: int = VARIABLE_SKETCH_SIZE
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
    format: int = FORMAT

    def to_json(self):
        """As text; what JSON does not know is written as its `str`."""
        return json.dumps(dataclasses.asdict(self), indent=1, default=str)

    @property
    def layout(self):
        """The `Layout` of the run's rows."""
        return Layout(
            len(self.variables), self.variable_sketch_size, self.sketch_size
        )


def layout_of(info):
    """The `Layout` that a `run.json` describes."""
    return Layout(
        len(info["variables"]),
        int(info["variable_sketch_size"]),
        int(info["sketch_size"]),
    )


def write_info(directory, info):
    """Writes `run.json` whole or not at all."""
    content = info.to_json()
    handle, name = tempfile.mkstemp(prefix=f"{INFO_FILE}.", dir=directory)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(content + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, os.path.join(directory, INFO_FILE))
    except BaseException:
        os.unlink(name)
        raise


def read_info(directory):
    """The content of a run's `run.json`, a dict.

    Raises:
        FileNotFoundError: `directory` is not a run.
        ValueError: its format is not the one known here.
    """
    path = os.path.join(directory, INFO_FILE)
    try:
        with open(path, encoding="utf-8") as file:
            info = json.load(file)
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(
            f"Expected a run's directory, with a file {INFO_FILE!r}. "
            f"Received: {os.fspath(directory)!r}, which has none"
        ) from None
    except ValueError as error:
        raise ValueError(
            f"{path!r} expected to be JSON, as written when the run began: "
            f"{error}. Remove the run's directory to go on without it."
        ) from None
    found = info.get("format") if isinstance(info, dict) else None
    if found != FORMAT:
        raise ValueError(
            f"The run {os.fspath(directory)!r} expected records of format "
            f"{FORMAT}. Received: format {found!r}. Read them with the "
            "version of keras_pergrad that wrote them."
        )
    return info
