"""Each input of each op with a rule is looked at; motion is the witness."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from keras_pergrad.keras_internals.graphs.nodes import (
    Definitions,
    op_definition,
)
from keras_pergrad.proof.op_facts import DRAWS, ops_with
from keras_pergrad.proof.sample_loops import CurrentSample
from keras_pergrad.proof.static_numbers import _argument_names
from keras_pergrad.proof.tensor_types import (
    INPUTS,
    RULES,
    VALUES,
    At,
    Divisor,
    Free,
    Mixed,
    Total,
)
from keras_pergrad.proof.typing import Typing
from tests.proof.rule_cases import CASES


def _ops(names):
    return frozenset(names.split())


#: Ops that cannot be tried here → why.
UNTRIED = {
    **dict.fromkeys(
        _ops("CollectiveReduce CollectiveReduceV2 CollectiveReduceV3"),
        "needs a group of replicas",
    ),
    **dict.fromkeys(
        _ops("CudnnRNNV3 CudnnRNNBackpropV3"), "runs on GPUs alone"
    ),
    **dict.fromkeys(
        _ops(
            "LookupTableFind LookupTableFindV2 ResourceGather "
            "ResourceGatherNd StatefulRandomBinomial"
        ),
        "takes a handle: see test_kept_elsewhere.py",
    ),
    **dict.fromkeys(
        _ops("OptionalFromValue OptionalGetValue"),
        "gives no tensor: see mixing_cases.py",
    ),
    **dict.fromkeys(
        _ops(
            "SegmentMaxV2 SegmentMinV2 SegmentProdV2 SegmentSumV2 "
            "XlaDynamicSlice XlaDynamicUpdateSlice"
        ),
        "runs under XLA alone: see test_under_xla.py",
    ),
    "DebugIdentityV3": "writes what it is given into files",
    "FractionalMaxPoolGrad": "compares its inputs with each other",
    "ShapeN": "gives sizes",
    "_EagerConst": "stands in no graph",
}
#: Ops that are refused with samples in any input, or give constants.
REFUSED = _ops(
    "Bincount DynamicPartition DynamicStitch LinSpace ListDiff OnesLike "
    "ParameterizedTruncatedNormal Range SparseReshape SparseToDense "
    "StatelessParameterizedTruncatedNormal Unique UniqueV2 UniqueWithCounts "
    "Where ZerosLike"
)
#: Ops that take a single number.
SCALAR = {"Fill"}
#: Ops → how many of their outputs are written without training: TensorFlow
#: leaves the rest, which only a gradient in training takes, as memory was.
WRITTEN = dict.fromkeys(
    _ops("FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3"), 3
)
#: The size of an axis → how it may have the samples: (n, rows, lead).
_LAYOUTS = {
    6: [(6, 1, 1), (3, 2, 1), (3, 1, 2)],
    12: [(6, 1, 2), (3, 1, 4), (3, 2, 2)],
}
#: Types that have no axis for the samples.
WITHOUT_AXIS = [
    Total(0),
    Total(),
    Divisor(),
    CurrentSample(0, False, VALUES),
]


class Trial:
    """An op some of whose inputs follow the samples.

    Args:
        op_type: the type of op.
        followed: the places of these inputs.
    """

    def __init__(self, op_type, followed):
        arguments, attributes = CASES[op_type]
        self.op_type, self._graph = op_type, tf.Graph()
        self.given, self._fed = {}, {}
        with self._graph.as_default():
            tensors, place = {}, 0
            for name, argument in zip(_argument_names(op_type), arguments):
                parts = argument if isinstance(argument, list) else [argument]
                made = []
                for given in parts:
                    made.append(self._tensor(given, place in followed, place))
                    place += 1
                tensors[name] = made if isinstance(argument, list) else made[0]
            definition = op_definition(op_type)
            known = {a.name for a in definition.attr}
            values = {k: v for k, v in attributes.items() if k in known}
            made = getattr(tf.raw_ops, op_type)(**tensors, **values)
            made = tf.nest.flatten(made)
            self.outputs = list(made[0].op.outputs) if made else []
            self._read = [
                self._of_list(t) if t.dtype == tf.variant else t
                for t in self.outputs
            ]

    def _of_list(self, tensor):
        """Return the tensors of a list; those of parts differ: the first."""
        how = {"input_handle": tensor, "element_dtype": "float64"}
        if self.op_type == "TensorListSplit":
            return tf.raw_ops.TensorListGetItem(
                index=0, element_shape=-1, **how
            )
        return tf.raw_ops.TensorListStack(element_shape=[-1, 5], **how)

    def _tensor(self, given, is_followed, place):
        if not is_followed:
            tensor = tf.constant(given.array)
        else:
            dtype = tf.constant(given.array).dtype
            tensor = tf.compat.v1.placeholder(dtype, given.array.shape)
            self.given[place], self._fed[place] = given, tensor
        if given.is_list:
            tensor = tf.raw_ops.TensorListFromTensor(
                tensor=tensor, element_shape=given.array.shape[1:]
            )
        return tensor

    def types(self, n, types):
        """Return the types of the outputs; `types` are those of what is fed."""
        typing = Typing(Definitions(self._graph), n, False)
        typing.set_inputs([self._fed[k] for k in types], types.values())
        operations = self._graph.get_operations()
        operations = operations[: operations.index(self.outputs[0].op) + 1]
        typing.run({op: op.name for op in operations})
        return [typing.of(t) for t in self.outputs]

    def run(self, arrays):
        """Return what the op gives."""
        fed = {self._fed[k]: array for k, array in arrays.items()}
        if self.op_type in ops_with(DRAWS) or not hasattr(self, "_session"):
            # What it merges would give other outputs.
            config = tf.compat.v1.ConfigProto()
            rewrites = config.graph_options.rewrite_options
            rewrites.disable_meta_optimizer = True
            self._session = tf.compat.v1.Session(
                graph=self._graph, config=config
            )
        return self._session.run(self._read, fed)

    def faults(self, n, types):
        """Return (faults, whether samples are served) of these types."""
        found, served = [], False
        results = self.types(n, types)
        if all(isinstance(t, (Mixed, Divisor, CurrentSample)) for t in results):
            return [], False
        if any(g.other is None for g in self.given.values()):
            return [f"{types}: an input with one value gives {results}"], False
        base = {k: g.array for k, g in self.given.items()}
        try:
            before = self.run(base)
            after = [
                self.run(self._exchanged(types, n, samples))
                for samples in [(0,), (1,), (0, 1)]
            ]
        except (ValueError, tf.errors.OpError) as error:
            return [f"{types} gives {results}, but it fails: {error}"], False
        for k, result in enumerate(results[: WRITTEN.get(self.op_type)]):
            arrays = [run[k] for run in (before, *after)]
            is_list = self.outputs[k].dtype == tf.variant
            if is_list and isinstance(result, At) and arrays[0].ndim == 3:
                stacked = self.op_type != "TensorListSplit"
                result = result.on(result.axis + stacked)
            why = _fault(result, n, arrays)
            if why:
                found.append(f"{types} gives {result} ({k}), but {why}")
            served |= not isinstance(result, (Mixed, Free))
        return found, served

    def _exchanged(self, types, n, samples):
        """Return the inputs, those of some samples exchanged."""
        arrays = {}
        for k, given in self.given.items():
            array, kind = given.array.copy(), types[k]
            if isinstance(kind, At):
                rows = array.shape[kind.axis] // n // kind.lead
                numbers = np.arange(array.shape[kind.axis]) // rows % n
                place = [slice(None)] * kind.axis + [np.isin(numbers, samples)]
                array[tuple(place)] = given.other[tuple(place)]
            elif isinstance(kind, Total) and array.dtype.kind in "fc":
                # Each sample adds its part.
                part = given.other - given.array
                array = array + sum((0.3, 0.5)[i] * part for i in samples)
                array = array.astype(given.array.dtype)
            else:
                array = given.other
            arrays[k] = array
        return arrays


def _moved(before, after):
    if before.shape != after.shape:
        return None
    if before.dtype.kind not in "fc":
        return before != after
    tolerance = 1e-9 if before.dtype in ("float64", "complex128") else 1e-4
    with np.errstate(invalid="ignore"):
        moved = np.abs(after - before) > tolerance * (1 + np.abs(before))
    return moved | (np.isnan(before) != np.isnan(after))


def _fault(kind, n, arrays):
    """Return what of a type does not agree with how an output moves."""
    if isinstance(kind, (Mixed, Divisor, CurrentSample)):
        return None
    before, *after = map(np.asarray, arrays)
    for samples, array in zip([(0,), (1,), (0, 1)], after):
        moved = _moved(before, array)
        if moved is None:
            return "it gets another shape"
        if isinstance(kind, Free) and moved.any():
            return "it moves"
        if isinstance(kind, At):
            if kind.axis >= moved.ndim or (
                moved.shape[kind.axis] != n * kind.rows * kind.lead
            ):
                return f"its shape is {moved.shape}"
            lines = np.moveaxis(moved, kind.axis, 0)
            lines = lines.reshape(kind.lead, n, kind.rows, -1)
            if np.delete(lines, samples, 1).any():
                return f"others move with {samples}"
    if isinstance(kind, Total) and before.dtype.kind in "fc":
        one, two, both = (array - before for array in after)
        limit = 1e-7 if before.dtype in ("float64", "complex128") else 1e-3
        if not np.allclose(one + two, both, rtol=limit, atol=limit):
            return "the samples' parts do not add up"
    return None


def inputs_of(op_type):
    """Return the inputs of an op, each by itself."""
    arguments = CASES[op_type][0]
    return tf.nest.flatten([*arguments]) if arguments else []


def _places(given):
    """Yield (n, type) for each axis that may have the samples."""
    for axis, size in enumerate(given.array.shape):
        for n, rows, lead in _LAYOUTS.get(size, [(size, 1, 1)]):
            if n > 1:
                yield n, At(axis, rows, lead)


def test_each_rule_has_a_case_or_a_reason():
    assert set(RULES) == set(CASES) | set(UNTRIED)
    assert not set(CASES) & set(UNTRIED)


def test_rules_name_inputs_that_their_ops_have():
    for op_type, places in INPUTS.items():
        definition = op_definition(op_type)
        if places != "all" and definition is not None:
            assert max(places) < len(definition.input_arg), op_type


@pytest.mark.parametrize("op_type", CASES)
def test_no_input_is_overlooked(op_type):
    found, is_served = [], False
    inputs = inputs_of(op_type)
    for k, given in enumerate(inputs):
        trial = Trial(op_type, {k})
        kinds = [*_places(given), *((6, kind) for kind in WITHOUT_AXIS)]
        for n, kind in kinds:
            faults, served = trial.faults(n, {k: kind})
            found += faults
            is_served |= served and isinstance(kind, At)
    assert not found, "\n".join(found)
    assert is_served == (op_type not in REFUSED | SCALAR)


@pytest.mark.parametrize(
    "op_type", [op for op in CASES if len(inputs_of(op)) > 1]
)
def test_samples_that_lie_differently_meet_nowhere(op_type):
    found, inputs = [], inputs_of(op_type)
    for j, k in itertools.combinations(range(len(inputs)), 2):
        pairs = [
            (n, {j: first, k: second})
            for n, first in _places(inputs[j])
            for m, second in _places(inputs[k])
            if n == m
        ]
        trial = Trial(op_type, {j, k}) if pairs else None
        for n, types in pairs:
            found += trial.faults(n, types)[0]
    assert not found, "\n".join(found)


def test_the_net_finds_an_input_that_is_overlooked(monkeypatch):
    monkeypatch.setitem(INPUTS, "TensorListSplit", "all")
    with pytest.raises(AssertionError, match="another shape"):
        test_no_input_is_overlooked("TensorListSplit")
