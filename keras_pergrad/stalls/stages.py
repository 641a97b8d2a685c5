"""The stages of a `tf.data` pipeline: as written, as they run, as a table.

The written ones are read without running them. Nothing is iterated: that would
use up a generator or move a shuffle's random state, and training would differ.
"""

import dataclasses
import operator
import re

import tensorflow as tf

from keras_pergrad.common.data_batches import source_of_draws
from keras_pergrad.common.text import as_text
from keras_pergrad.keras_internals.data import sources
from keras_pergrad.stalls.running import NESTING

READERS = ("TextLine", "TFRecord", "FixedLengthRecord")
_WRITTEN_NAMES = {
    "TensorSlice": "from_tensor_slices",
    "Tensor": "from_tensors",
    "FromTensor": "from_tensors",
}
PYTHON_OPS = ("PyFunc", "EagerPyFunc", "PyFuncStateless")
#: Stages that TensorFlow fuses into one, from the last to the first.
FUSED_STAGES = {
    "MapAndBatch": ("Batch", "Map"),
    "ParallelMapAndBatch": ("Batch", "Map"),
    "ShuffleAndRepeat": ("Repeat", "Shuffle"),
    "MapAndFilter": ("Filter", "Map"),
}
#: Kinds of data that reach TensorFlow in stages that the user did not write.
LOADER_KINDS = ("pydataset", "generator", "dataloader", "grain", "drawn")
_GENERATOR_STAGES = ("FlatMap", "Generator")
#: Stages that bring data in; the others transform it.
_LOADING_STAGES = (*NESTING, "Generator")
_SHARE = operator.attrgetter("share")


@dataclasses.dataclass
class Stage:
    """One transformation: `kind` is a name such as Map or ParallelMap."""

    kind: str
    label: str
    dataset: tf.data.Dataset
    ops: frozenset
    function: str | None = None

    @property
    def is_reader(self):
        return self.kind in READERS

    @property
    def runs_python(self):
        return any(op in PYTHON_OPS for op in self.ops)

    @property
    def is_random(self):
        return any("Random" in op for op in self.ops)

    @property
    def is_generator(self):
        return "GeneratorDataset" in self.ops


def written_stages(dataset):
    """Return the stages of a data set as written, the last one first.

    Of several inputs (as of `zip`) only the first is followed.
    """
    chain = []
    while dataset is not None:
        kind = type(dataset).__name__.strip("_").replace("Dataset", "")
        kind = kind.removesuffix("V2").removesuffix("V1Adapter")
        inputs, graphs, function = sources.dataset_components(dataset)
        if kind != "Options":
            chain.append(
                _make_stage(kind, dataset, graphs=graphs, function=function)
            )
            if chain[-1].is_generator:
                # What comes before was made by `from_generator` itself.
                break
        dataset = inputs[0] if inputs else None
    return chain


def _make_stage(kind, dataset, *, graphs, function):
    ops = set()
    for graph in graphs:
        op_types = [op.type for op in graph.get_operations()]
        library = graph.as_graph_def().library.function
        op_types += [n.op for f in library for n in f.node_def]
        ops.update(op_types)
    name = getattr(function, "__name__", None)
    name = name and name.removesuffix("V2")  # a dataset class of TensorFlow
    label = f"{_plain_name(kind)}({name})" if name else _plain_name(kind)
    if "GeneratorDataset" in ops:
        label = "from_generator"
    return Stage(kind, label, dataset, ops=frozenset(ops), function=name)


def _plain_name(kind):
    return written_name(kind.removeprefix("Parallel"))


def written_name(kind):
    """Turn TensorFlow's name into the user's: FlatMap, flat_map."""
    if kind in _WRITTEN_NAMES:
        return _WRITTEN_NAMES[kind]
    if kind in READERS:
        return f"{kind}Dataset"
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind).lower()


def reads_files_in_turn(stage):
    """Whether a file reader has several files and reads one at a time."""
    implementation, files = sources.inner_reader(stage.dataset)
    if not stage.is_reader or files is None:
        return False
    several = int(files.cardinality()) not in (0, 1)
    return several and "Parallel" not in type(implementation).__name__


@dataclasses.dataclass
class StageRow:
    """What one stage of a running pipeline costs.

    Attributes:
        name: As the user wrote it, `map(decode)`; the name of a stage that
            TensorFlow added says so.
        share: Share of the pipeline's work, 0 to 1.
        element_ms: Time for one element that it gives; None if unknown.
        parallelism: Parallel calls; None if there is always only one.
        buffer_size: Elements that its buffer may hold, or None.
        buffered: Elements in its buffer when it was examined.
        autotuned: Whether TensorFlow chose these numbers.
        is_bottleneck: Whether it does most of the work of a pipeline that is
            the bottleneck.
        loads: Whether it brings data in (a source, a reader, a generator),
            and does not only transform it.
    """

    name: str
    share: float
    element_ms: float | None = None
    parallelism: int | None = None
    buffer_size: int | None = None
    buffered: int | None = None
    autotuned: bool = False
    is_bottleneck: bool = False
    loads: bool = False


def stage_rows(data, kind, *, written, running, is_bottleneck):
    """Return a `StageRow` for each stage that runs, the source first.

    Args:
        data, kind: what the user passed, and what `kind_of` says of it.
        written, running: the stages, last first; empty or None where unknown.
        is_bottleneck: whether the pipeline is one.
    """
    if not running:
        return []
    names, file_maps = _stage_names(
        data, kind, written=written, running=running
    )
    total = sum(stage.seconds for stage in running) or 1.0
    rows = []
    last = len(running) - 1
    for place, (name, stage) in enumerate(zip(names, running)):
        per_element = None
        if stage.elements:
            per_element = 1e3 * stage.seconds / stage.elements
        has_buffer = stage.buffered or stage.buffer_size is not None
        rows.append(
            StageRow(
                name=name,
                share=stage.seconds / total,
                element_ms=per_element,
                parallelism=stage.parallelism,
                buffer_size=stage.buffer_size,
                buffered=stage.buffered if has_buffer else None,
                autotuned=stage.autotuned,
                loads=place == last
                or place in file_maps
                or stage.name in _LOADING_STAGES,
            )
        )
    if is_bottleneck and slowest(rows) is not None:
        max(rows, key=_SHARE).is_bottleneck = True
    return rows[::-1]


def slowest(rows):
    """Return (name, share of the work) of the slowest stage, or None."""
    top = max(rows, key=_SHARE, default=None)
    # A prefetch does no work: where it seems to, it stands for a stage that
    # TensorFlow does not account for (a file reader).
    if top is None or top.name.startswith("prefetch") or top.share <= 0:
        return None
    return top.name, top.share


def work_shares(rows):
    """Return shares of the work: (loading, all else); None if unknown."""
    if not rows or not any(row.share for row in rows):
        return None
    loading = sum(row.share for row in rows if row.loads)
    return loading, 1.0 - loading


def _stage_names(data, kind, *, written, running):
    """Return the names of the running stages, and which maps read files."""
    if kind in LOADER_KINDS:
        return [_loader_name(data, stage) for stage in running], set()
    labels = _numbered_labels(written)
    names, file_maps = [], set()
    for place, (stage, written_places) in enumerate(
        zip(running, match_stages(written, running))
    ):
        names.append(
            " + ".join(labels[part] for part in reversed(written_places))
            or _added_name(stage.name)
        )
        if any("ReadFile" in written[part].ops for part in written_places):
            file_maps.add(place)
    return names, file_maps


def match_stages(written, running):
    """Return, for each running stage, the places of those written for it."""
    # Both run from the last stage to the source, so each search goes on where
    # the one before has ended.
    places, at = [], 0
    for stage in running:
        written_places = []
        for part in FUSED_STAGES.get(stage.name, (stage.name,)):
            place = _find_written(part, written, at)
            if place is not None:
                written_places.append(place)
                at = place + 1
        places.append(written_places)
    return places


def _numbered_labels(written):
    """Return the stages' labels; equal ones get numbers, from the source."""
    labels = [stage.label for stage in written]
    counts = {label: labels.count(label) for label in labels}
    numbered = list(labels)
    counts_so_far = {}
    for place in reversed(range(len(labels))):
        label = labels[place]
        if counts[label] > 1:
            counts_so_far[label] = counts_so_far.get(label, 0) + 1
            numbered[place] = f"{label} no. {counts_so_far[label]}"
    return numbered


def _find_written(name, written, start):
    # A generator and a file reader run as a flat_map: of a range of one, and of
    # the names of the files.
    kind = name.removeprefix("Parallel")
    for place in range(start, len(written)):
        stage = written[place]
        if stage.kind.removeprefix("Parallel") == kind:
            return place
        if stage.is_generator and name in _GENERATOR_STAGES:
            return place
        if stage.is_reader and name in (*_GENERATOR_STAGES, "TensorSlice"):
            return place
    return None


def _added_name(name):
    plain = name.removeprefix("Parallel").removesuffix("Dataset")
    added = " (added)" if plain == "Prefetch" else ""
    return written_name(plain) + added


def _loader_name(data, stage):
    source = source_of_draws(data)
    if stage.name in _GENERATOR_STAGES:
        return f"the {source or type(data).__name__}"
    return f"{written_name(stage.name)} ({'drawn' if source else 'Keras'})"


def stage_table(rows, cpu_budget=None, ram_budget=None):
    """Return the rows as a table of text."""
    columns = "stage", "of the work", "ms/element", "parallel", "buffer"
    lines = as_text(columns, map(_row_cells, rows), left=columns[:1])
    if cpu_budget or ram_budget:
        budget = []
        if cpu_budget:
            budget.append(f"{cpu_budget} cores")
        if ram_budget:
            budget.append(f"{ram_budget / 2**30:.3g} GiB for buffers")
        lines.append(f"AUTOTUNE may use {' and '.join(budget)}.")
    return "\n".join(lines)


def _row_cells(row):
    suffix = " auto" if row.autotuned else ""
    buffer = "" if row.buffered is None else str(row.buffered)
    if row.buffer_size is not None:
        buffer = f"{buffer or 0} of {row.buffer_size}"
    return (
        row.name + (" <- bottleneck" if row.is_bottleneck else ""),
        f"{row.share:.0%}",
        "" if row.element_ms is None else f"{row.element_ms:.3g}",
        "" if row.parallelism is None else f"{row.parallelism}{suffix}",
        buffer + (suffix if buffer and row.parallelism is None else ""),
    )
