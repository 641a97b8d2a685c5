"""Facts about TensorFlow's ops, by type of op.

The facts of a type of op are put together once. What TensorFlow's own
definition of an op says (whether it has state, calls functions, or takes a
shape) is read there.
"""

import dataclasses

import tensorflow as tf

from keras_pergrad.keras_internals.graphs.nodes import op_definition


def op_types(*names):
    """Return the types of ops in strings, each of one or several."""
    return frozenset(" ".join(names).split())


FUNCTION_CALLS = op_types("PartitionedCall StatefulPartitionedCall RemoteCall")
CONDITIONS = op_types("If StatelessIf Case StatelessCase")
LOOPS = op_types("While StatelessWhile")
CALLS = FUNCTION_CALLS | CONDITIONS | LOOPS
PADS = op_types("Pad PadV2")
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
READS = op_types(
    "ReadVariableOp ResourceGather ResourceGatherNd VariableShape "
    "LookupTableExportV2 LookupTableFindV2 LookupTableSizeV2"
)
#: Ops that pass on each handle that they are given.
FORWARD_HANDLES = op_types("Identity IdentityN")
#: Ops that draw numbers and advance the state behind a handle.
ADVANCE = op_types(
    "RngReadAndSkip RngSkip StatefulRandomBinomial StatefulStandardNormalV2 "
    "StatefulTruncatedNormal StatefulUniform StatefulUniformFullInt "
    "StatefulUniformInt"
)
#: Ops that draw other numbers each time.
DRAWS = ADVANCE | op_types(
    "AllCandidateSampler FixedUnigramCandidateSampler "
    "LearnedUnigramCandidateSampler LogUniformCandidateSampler Multinomial "
    "NonDeterministicInts ParameterizedTruncatedNormal RandomCrop RandomGamma "
    "RandomPoisson RandomPoissonV2 RandomShuffle RandomStandardNormal "
    "RandomUniform RandomUniformInt SampleDistortedBoundingBox "
    "SampleDistortedBoundingBoxV2 ThreadUnsafeUnigramCandidateSampler "
    "TruncatedNormal UniformCandidateSampler"
)
#: Ops with an effect outside of the step that no op of it can read.
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
#: Ops of which it is known what they do with state.
KNOWN_STATE = ASSIGN | READS | DRAWS | TELL | _FROM_INPUTS
#: Ops without state of their own that read files: the step may have them.
_FILES = op_types("MatchingFiles ReadFile")
#: Ops whose outputs follow the size of the batch, never its values.
SIZES = op_types("Shape ShapeN Size Rank")
#: Ops whose outputs are sizes of what they are given.
GIVE_SIZES = SIZES | op_types(
    "VariableShape TensorListLength TensorListElementShape"
)
#: Ops whose outputs have the type `Free`, or that was set before.
_IGNORED = op_types("Placeholder Const NoOp")
#: Ops on lists, of which is noted what they do to them.
_ON_LISTS = op_types(
    "EmptyTensorList OptionalFromValue TensorListFromTensor TensorListLength "
    "TensorListPopBack TensorListPushBack TensorListReserve TensorListResize "
    "TensorListSetItem"
)
#: Ops whose shapes are better known once they, or their lists, are typed.
_SHAPED_BY_TYPE = op_types(
    "TensorListGetItem TensorListStack TensorListPopBack "
    "TensorListConcatV2 TensorListGather OptionalGetValue "
    "LookupTableFindV2 EagerPyFunc PyFunc PyFuncStateless EnsureShape "
    "DenseBincount"
)
#: What Python computes may follow from anything, also without inputs.
_PYTHON = op_types("PyFunc PyFuncStateless EagerPyFunc")
#: Ops that take sizes or places, which have these names in TensorFlow's
#: definitions. What follows the number of samples there gives a tensor its
#: shape, not its values.
TAKE_SIZES = op_types(
    "AvgPool3DGrad AvgPoolGrad BroadcastArgs BroadcastGradientArgs BroadcastTo "
    "Conv2DBackpropFilter Conv2DBackpropInput Conv3DBackpropFilterV2 "
    "Conv3DBackpropInputV2 DepthwiseConv2dNativeBackpropFilter "
    "DepthwiseConv2dNativeBackpropInput Empty EmptyTensorList Fill "
    "MatrixDiagV3 Mean OneHot Pad PadV2 RandomStandardNormal RandomUniform "
    "RandomUniformInt Reshape ResizeNearestNeighborGrad RngReadAndSkip RngSkip "
    "ScatterNd Slice SplitV StatefulStandardNormalV2 StatefulUniform "
    "StatelessRandomBinomial StatelessRandomGammaV2 StatelessRandomGammaV3 "
    "StatelessRandomNormal StatelessRandomNormalV2 StatelessRandomPoisson "
    "StatelessRandomUniform StatelessRandomUniformFullIntV2 "
    "StatelessRandomUniformInt StatelessRandomUniformIntV2 "
    "StatelessRandomUniformV2 StatelessTruncatedNormal "
    "StatelessTruncatedNormalV2 StridedSlice StridedSliceGrad Sum "
    "TensorListConcatV2 TensorListFromTensor TensorListGetItem "
    "TensorListPopBack TensorListReserve TensorListStack Tile Transpose "
    "TruncatedNormal UnsortedSegmentSum"
)
#: Ops that take a part of their first input, by places.
TAKE_PARTS = op_types("Slice StridedSlice")
_SIZE_NAMES = op_types(
    "begin delta depth dims element_shape end filter_sizes index input_sizes k "
    "leading_dims max_num_elements multiples num_cols num_elements num_rows "
    "num_segments orig_input_shape paddings perm reduction_indices s0 s1 shape "
    "size size_splits split_dim strides"
)


@dataclasses.dataclass(frozen=True)
class Argument:
    """An argument of a type of op.

    Attributes:
        place, name: as in TensorFlow's definition of the op.
        count: the name of the attribute that tells how many tensors it has;
            empty: it has one.
    """

    place: int
    name: str
    count: str = ""

    def tensors(self, op):
        """Return how many tensors of an op it has."""
        if not self.count:
            return 1
        count = op.get_attr(self.count)
        return len(count) if isinstance(count, list) else count


@dataclasses.dataclass(frozen=True)
class OpFacts:
    """What is known of a type of op.

    Attributes:
        is_ignored: whether nothing has to be known of it.
        is_on_lists: whether it makes, changes or measures lists of tensors.
        is_read, is_assignment: whether it reads, or changes, what is behind a
            handle.
        forwards_handles: whether it gives the handles that it is given.
        advances_state: whether it advances the state behind a handle.
        gives_sizes: whether its outputs are sizes of its inputs.
        is_python: whether Python computes it.
        has_state: whether it keeps state, or takes or gives a handle of some.
        may_keep: whether its effect on state depends on what it is given.
        has_functions: whether it has functions among its attributes.
        goes_first: whether shapes behind it follow from types: it is a call,
            or an op whose shapes are better known once it is typed.
        size_inputs: the places of inputs that are sizes or places.
        arguments: its `Argument`s.
    """

    is_ignored: bool
    is_on_lists: bool
    is_read: bool
    is_assignment: bool
    forwards_handles: bool
    advances_state: bool
    gives_sizes: bool
    is_python: bool
    has_state: bool
    may_keep: bool
    has_functions: bool
    goes_first: bool
    size_inputs: tuple
    arguments: tuple

    def arguments_of(self, op):
        """Return the `Argument` of each input of an op."""
        if not self.arguments:  # It has no definition.
            return [Argument(k, str(k)) for k in range(len(op.inputs))]
        if not any(a.count for a in self.arguments):
            return self.arguments
        return [a for a in self.arguments for _ in range(a.tensors(op))]

    @classmethod
    def of(cls, op_type, definition):
        """Return the facts of an op with an `OpDef`; None: it has none."""
        inputs, outputs, attributes = (), (), ()
        if definition is not None:
            inputs, outputs = definition.input_arg, definition.output_arg
            attributes = definition.attr
        handles = any(
            a.is_ref or a.type == tf.resource.as_datatype_enum
            for a in (*inputs, *outputs)
        )
        is_stateful = definition is not None and definition.is_stateful
        return cls(
            is_ignored=op_type in _IGNORED,
            is_on_lists=op_type in _ON_LISTS,
            is_read=op_type in READS,
            is_assignment=op_type in ASSIGN,
            forwards_handles=op_type in FORWARD_HANDLES,
            advances_state=op_type in ADVANCE,
            gives_sizes=op_type in GIVE_SIZES,
            is_python=op_type in _PYTHON,
            has_state=is_stateful or handles or op_type in _FILES,
            may_keep=op_type in ADVANCE or op_type == "PrintV2",
            has_functions=any(
                a.type in ("func", "list(func)") for a in attributes
            ),
            goes_first=op_type in CALLS or op_type in _SHAPED_BY_TYPE,
            size_inputs=tuple(
                k
                for k, a in enumerate(inputs)
                if op_type in TAKE_SIZES and a.name in _SIZE_NAMES
            ),
            arguments=tuple(
                Argument(k, a.name, a.number_attr or a.type_list_attr)
                for k, a in enumerate(inputs)
            ),
        )


class _Facts(dict):
    """Type of op → `OpFacts`, made when they are first asked for."""

    def __missing__(self, op_type):
        definition = op_definition(op_type)
        facts = OpFacts.of(op_type, definition)
        # The library of an op without a definition may be loaded later.
        if definition is not None:
            self[op_type] = facts
        return facts


FACTS = _Facts()
