"""The types of what variables and tables hold while a step runs."""

import contextlib
import functools

import tensorflow as tf

from keras_pergrad.keras_internals.graph_nodes import op_definition
from keras_pergrad.samples.types.tensor_types import (
    FREE,
    TRAINED,
    Free,
    Mixed,
    joined_or_mixed,
)
from keras_pergrad.samples.types.type_rules import op_types, rule_of

#: Ops that change what is behind their first input by the others.
ASSIGN = op_types(
    "AssignVariableOp AssignAddVariableOp AssignSubVariableOp "
    "LookupTableImportV2 LookupTableInsertV2 LookupTableRemoveV2 "
    "ResourceScatterAdd ResourceScatterDiv ResourceScatterMax "
    "ResourceScatterMin ResourceScatterMul ResourceScatterNdAdd "
    "ResourceScatterNdMax ResourceScatterNdMin ResourceScatterNdSub "
    "ResourceScatterNdUpdate ResourceScatterSub ResourceScatterUpdate "
    "ResourceStridedSliceAssign"
)
#: These give a variable its new value, or add to it; all others change a part.
_WHOLE, _ADD = (
    "AssignVariableOp",
    {"AssignAddVariableOp", "AssignSubVariableOp"},
)
READS = op_types(
    "ReadVariableOp ResourceGather ResourceGatherNd VariableShape "
    "LookupTableExportV2 LookupTableFindV2 LookupTableSizeV2"
)
#: Ops that give each handle that they are given.
HAND_ON = op_types("Identity IdentityN")
#: Ops that draw numbers and advance the state behind a handle.
_ADVANCE = op_types(
    "RngReadAndSkip RngSkip StatefulRandomBinomial StatefulStandardNormalV2 "
    "StatefulTruncatedNormal StatefulUniform StatefulUniformFullInt "
    "StatefulUniformInt"
)
#: Ops that draw other numbers each time.
DRAWS = _ADVANCE | op_types(
    "AllCandidateSampler FixedUnigramCandidateSampler "
    "LearnedUnigramCandidateSampler LogUniformCandidateSampler Multinomial "
    "NonDeterministicInts ParameterizedTruncatedNormal RandomCrop RandomGamma "
    "RandomPoisson RandomPoissonV2 RandomShuffle RandomStandardNormal "
    "RandomUniform RandomUniformInt SampleDistortedBoundingBox "
    "SampleDistortedBoundingBoxV2 ThreadUnsafeUnigramCandidateSampler "
    "TruncatedNormal UniformCandidateSampler"
)
#: Ops that tell something outside of the step, which no op reads.
TELL = op_types(
    "Assert DisableCopyOnRead FlushSummaryWriter PrintV2 WriteAudioSummary "
    "WriteGraphSummary WriteHistogramSummary WriteImageSummary "
    "WriteRawProtoSummary WriteScalarSummary WriteSummary"
)
#: Ops that TensorFlow calls stateful, though all they give is from their inputs
#: or the same for all samples.
_FROM_INPUTS = op_types(
    "CudnnRNN CudnnRNNBackprop CudnnRNNBackpropV2 CudnnRNNBackpropV3 "
    "CudnnRNNV2 CudnnRNNV3 DeepCopy DeviceIndex Empty GuaranteeConst "
    "StatelessRandomGetAlg Timestamp VarIsInitializedOp"
)
_KNOWN = ASSIGN | READS | DRAWS | TELL | _FROM_INPUTS
#: Ops without state of their own that read files: the step may have them.
_FILES = op_types("MatchingFiles ReadFile")


class State:
    """The types of what is kept behind handles.

    Attributes:
        trained: the keys of trainable variables.
        origins: the id of a handle → the key of its variable.
        assigned: the key of a variable → the type of what it was given.
    """

    def __init__(self):
        self.trained, self.origins, self.assigned = set(), {}, {}
        self._noted = set()

    @contextlib.contextmanager
    def noting(self):
        """Give a set; meanwhile the keys of what is assigned are added."""
        before, self._noted = self._noted, set()
        try:
            yield self._noted
        finally:
            self._noted = before | self._noted

    def key(self, handle):
        """Return the key of the variable behind a handle."""
        return self.origins.get(id(handle), id(handle))

    def same(self, tensor, other):
        """Let a handle be another one, in another graph or behind an op."""
        if other.dtype in (tf.resource, tf.variant):
            self.origins[id(tensor)] = self.key(other)

    def assign(self, op, types):
        """Note what an op of `ASSIGN` assigns."""
        key, kind = self.key(op.inputs[0]), FREE
        for given in types[1:]:
            kind = joined_or_mixed(op, kind, given)
        if op.type != _WHOLE:
            if op.type not in _ADD and not isinstance(kind, Free):
                kind = Mixed(
                    op.type,
                    op.name,
                    "gives a part of a variable what follows the samples",
                )
            before = self.assigned.get(key, FREE)
            kind = joined_or_mixed(op, before, kind)
        self.assigned[key] = kind
        self._noted.add(key)

    def advance(self, op):
        """Note that an op draws from the state behind its first input."""
        if op.type in _ADVANCE:
            self._noted.add(self.key(op.inputs[0]))

    def held(self, handle):
        """Return the type of what the step has assigned behind a handle."""
        return self.assigned.get(self.key(handle), FREE)

    def flags(self, handle):
        """Return the flags of what is read from a handle."""
        return TRAINED if self.key(handle) in self.trained else 0

    def unknown(self, op):
        """Return the `Mixed` that is kept behind a handle of an op, or None."""
        for tensor in op.inputs:
            if tensor.dtype == tf.resource:
                held = self.held(tensor)
                if isinstance(held, Mixed):
                    return held
        return None


def keeps_unknown(op, types):
    """Whether no rule knows what an op keeps, or reads of what is kept."""
    if op.type in _KNOWN:
        if op.type == "PrintV2":
            # What is printed into a file can be read from there.
            return op.get_attr("output_stream").startswith(b"file:")
        moved = op.type in _ADVANCE and not rule_of(op.type)
        return moved and not all(isinstance(t, Free) for t in types)
    if rule_of(op.type) or op.type in HAND_ON:
        return False
    gives = any(t.dtype == tf.resource for t in op.outputs)
    return gives or has_state(op.type)


@functools.cache
def has_state(op_type):
    """Whether a type of op keeps state, or takes or gives a handle of some.

    By TensorFlow's definition of the op.
    """
    if op_type in _FILES:
        return True
    known = op_definition(op_type)
    if known is None:
        return False
    handles = [*known.input_arg, *known.output_arg]
    return known.is_stateful or any(
        a.is_ref or a.type == tf.resource.as_datatype_enum for a in handles
    )
