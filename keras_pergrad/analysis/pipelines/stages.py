"""The stages of an input pipeline, read without running it.

Nothing is iterated: that would use up a generator or move a shuffle's random
state, and training would differ.
"""

import dataclasses
import re

import tensorflow as tf

from keras_pergrad.keras_internals import dataset_parts

READERS = ("TextLine", "TFRecord", "FixedLengthRecord")
_READER_OPS = tuple(f"{name}Dataset" for name in READERS)
_WRITTEN = {
    "TensorSlice": "from_tensor_slices",
    "Tensor": "from_tensors",
    "FromTensor": "from_tensors",
}
PYTHON_OPS = ("PyFunc", "EagerPyFunc", "PyFuncStateless")


@dataclasses.dataclass
class Stage:
    """One transformation: `kind` is a name such as Map or ParallelMap."""

    kind: str
    label: str
    dataset: tf.data.Dataset
    ops: frozenset
    deterministic: bool
    function: str | None = None

    @property
    def is_reader(self):
        return self.kind in READERS

    @property
    def reads_files(self):
        """Whether its function opens files as datasets of their own."""
        return any(op.startswith(_READER_OPS) for op in self.ops)

    @property
    def runs_python(self):
        return any(op in PYTHON_OPS for op in self.ops)

    @property
    def is_random(self):
        return any("Random" in op for op in self.ops)

    @property
    def is_generator(self):
        return "GeneratorDataset" in self.ops


def stages(dataset):
    """Return the stages, last first, along the first input of each."""
    chain = []
    while dataset is not None:
        kind = type(dataset).__name__.strip("_").replace("Dataset", "")
        kind = kind.removesuffix("V2").removesuffix("V1Adapter")
        if kind != "Options":
            chain.append(_stage(kind, dataset))
            if chain[-1].is_generator:
                break
        inputs = dataset_parts.inputs_of(dataset)
        dataset = inputs[0] if inputs else None
    return chain


def _stage(kind, dataset):
    ops = set()
    for graph in dataset_parts.graphs_of(dataset):
        nodes = [op.type for op in graph.get_operations()]
        library = graph.as_graph_def().library.function
        nodes += [n.op for f in library for n in f.node_def]
        ops.update(nodes)
    name = getattr(dataset_parts.mapped_function(dataset), "__name__", None)
    name = name and name.removesuffix("V2")  # a dataset class of TensorFlow
    label = f"{_plain(kind)}({name})" if name else _plain(kind)
    if "GeneratorDataset" in ops:
        label = "from_generator"
    ordered = dataset_parts.is_ordered(dataset)
    return Stage(kind, label, dataset, frozenset(ops), ordered, name)


def _plain(kind):
    return written_name(kind.removeprefix("Parallel"))


def written_name(kind):
    """Turn TensorFlow's name into the user's: FlatMap, flat_map."""
    if kind in _WRITTEN:
        return _WRITTEN[kind]
    if kind in READERS:
        return f"{kind}Dataset"
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind).lower()


def files_in_turn(stage):
    """Whether a file reader has several files and reads one at a time."""
    implementation, files = dataset_parts.reader_inside(stage.dataset)
    if not stage.is_reader or files is None:
        return False
    several = int(files.cardinality()) not in (0, 1)
    return several and "Parallel" not in type(implementation).__name__


def reader_buffer(stage):
    """Return a file reader's buffer in bytes; None: the default, no file."""
    if stage.kind not in READERS:
        return None
    return dataset_parts.reader_buffer(stage.dataset)
