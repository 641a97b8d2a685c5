"""The stages of an input pipeline, read without running it.

Nothing is iterated: that would use up a generator or move a shuffle's random
state, and training would differ.

Private names of TensorFlow in use here, each tested: `Dataset._inputs()`,
`Dataset._functions()`, `_map_func._func`, `_deterministic`, `_buffer_size`,
`_batch_size`, and of readers `_impl` with its `_input_dataset`.
"""

import dataclasses
import re

import tensorflow as tf

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
        inputs = dataset._inputs()
        dataset = inputs[0] if inputs else None
    return chain


def _stage(kind, dataset):
    ops = set()
    for wrapped in dataset._functions():
        graph = wrapped.function.graph
        nodes = [op.type for op in graph.get_operations()]
        library = graph.as_graph_def().library.function
        nodes += [n.op for f in library for n in f.node_def]
        ops.update(nodes)
    function = getattr(getattr(dataset, "_map_func", None), "_func", None)
    name = getattr(function, "__name__", None)
    name = name and name.removesuffix("V2")  # a dataset class of TensorFlow
    label = f"{_plain(kind)}({name})" if name else _plain(kind)
    if "GeneratorDataset" in ops:
        label = "from_generator"
    ordered = getattr(dataset, "_deterministic", "default")
    return Stage(kind, label, dataset, frozenset(ops), ordered != "false", name)


def size_of(stage, name):
    """Return a number of the stage (`_buffer_size`), or None if unknown."""
    value = getattr(stage.dataset, name, None)
    if isinstance(value, tf.Tensor):
        value = tf.get_static_value(value)
    return None if value is None else int(value)


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
    implementation = getattr(stage.dataset, "_impl", None)
    files = getattr(implementation, "_input_dataset", None)
    if not stage.is_reader or files is None:
        return False
    several = int(files.cardinality()) not in (0, 1)
    return several and "Parallel" not in type(implementation).__name__


def reader_buffer(stage):
    """Return a file reader's buffer in bytes; None: the default, no file."""
    if stage.kind not in READERS:
        return None
    size = getattr(stage.dataset, "_buffer_size", None)
    if size is None:
        sizes = [
            s
            for s in stage.dataset.__dict__.values()
            if isinstance(s, int) and not isinstance(s, bool)
        ]
        return sizes[0] if sizes else None
    value = tf.get_static_value(size)
    return None if value is None else int(value)
