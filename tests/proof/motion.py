"""A witness for types: what moves when one sample is exchanged."""

import dataclasses
import itertools

import numpy as np
import tensorflow as tf

from keras_pergrad.keras_internals.graphs.nodes import (
    Definitions,
    Nodes,
    placeholder,
)
from keras_pergrad.proof.calls import type_nodes
from keras_pergrad.proof.tensor_types import At, Free, Mixed, Total
from keras_pergrad.proof.typing import Typing

#: How many samples are run, and how many are typed.
N, TYPED_N = 3, 211
_LIMIT = 1e-9


@dataclasses.dataclass
class Witness:
    """The tensors of a function: their types, and how they move.

    Attributes:
        types: name → type.
        before: name → array.
        after: for each set of exchanged samples, name → array.
        result: the name of what the function returned last.
    """

    types: dict
    before: dict
    after: dict
    result: str

    def of_result(self):
        """Return the type of what the function returned."""
        return self.types[self.result]

    def assert_right(self, expected):
        """Assert that types agree with the motion, and what the result has.

        Args:
            expected: the place of samples, a type, or None for any.
        """
        assert not self.faults()
        found = self.of_result()
        if isinstance(expected, tuple):
            assert isinstance(found, At), found
            assert found.place == expected
        elif expected is not None:
            assert isinstance(found, expected), found

    def faults(self):
        """Return what of the types does not agree with the motion."""
        found = []
        for name, kind in self.types.items():
            why = self._fault(name, kind)
            if why:
                found.append(f"{name} is {kind}, but {why}")
        return found

    def moved(self):
        """Return how many tensors with samples on an axis have moved."""
        return sum(
            bool(self._change(name, (0,)).any())
            for name, kind in self.types.items()
            if isinstance(kind, At)
        )

    def _change(self, name, samples):
        before, after = self.before[name], self.after[samples][name]
        if before.shape != after.shape:
            return None
        if before.dtype.kind not in "fc":
            return before != after
        with np.errstate(invalid="ignore"):
            moved = np.abs(after - before) > _LIMIT * (1 + np.abs(before))
        return moved | (np.isnan(before) != np.isnan(after))

    def _fault(self, name, kind):
        if isinstance(kind, Mixed):
            return None
        for i in range(N):
            change = self._change(name, (i,))
            if change is None:
                return "it gets another shape"
            if isinstance(kind, Free) and change.any():
                return f"it moves with sample {i}"
            if isinstance(kind, At):
                size = change.shape[kind.axis]
                if size != kind.lead * N * kind.rows:
                    return f"its axis has {size} entries for {N} samples"
                lines = np.moveaxis(change, kind.axis, 0)
                lines = lines.reshape(kind.lead, N, kind.rows, -1)
                if np.delete(lines, i, 1).any():
                    return f"others move with sample {i}"
        if isinstance(kind, Total) and self.before[name].dtype.kind == "f":
            before = self.before[name]
            one, two, both = (
                self.after[k][name] - before for k in ((0,), (1,), (0, 1))
            )
            if not np.allclose(one + two, both, rtol=1e-7, atol=1e-9):
                return "the samples' parts do not add up"
        return None


def witness(function, *arrays):
    """Type a function of samples, and watch its tensors.

    Args:
        function: of tensors of samples; what it returns is typed, and all
            that it computes.
        *arrays: twice as many samples as are run: the second half stands in
            for the first.
    """
    names, last = [], []

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, *a.shape[1:]], a.dtype) for a in arrays
        ]
    )
    def all_tensors(*given):
        last.append(function(*given).name)
        seen = [t for op in given[0].graph.get_operations() for t in op.outputs]
        seen = [t for t in seen if t.dtype not in (tf.resource, tf.variant)]
        names[:] = [t.name for t in seen]
        return seen

    concrete = all_tensors.get_concrete_function()
    types = _types(concrete, len(arrays), names)

    def run(exchanged):
        chosen = [k + N if k in exchanged else k for k in range(N)]
        found = concrete(*(tf.constant(a[chosen]) for a in arrays))
        # A scalar of text is Python's own otherwise.
        return dict(zip(names, (np.asarray(t.numpy()) for t in found)))

    sets = [(0,), (1,), (2,), *itertools.combinations(range(2), 2)]
    return Witness(types, run(()), {k: run(k) for k in sets}, result=last[-1])


def _types(concrete, count, wanted):
    graph = concrete.graph
    inputs = graph.inputs
    nodes = Nodes.of_graph(graph, inputs)
    nodes.only([name.rsplit(":", 1)[0] for name in wanted])
    typing = Typing(Definitions(graph), TYPED_N, True)
    typed, known = tf.Graph(), {}
    with typed.as_default():
        for k, tensor in enumerate(inputs):
            shape = tensor.shape
            if k < count:
                shape = [TYPED_N, *shape[1:]]
            known[tensor.name] = placeholder(tensor.dtype, shape, tensor)
    for tensor in inputs[:count]:
        typing.values[known[tensor.name]].type = At(0)
    type_nodes(nodes, known, typed, typing=typing)
    return {name: typing.of(known[name]) for name in wanted}
