"""Facts about TensorFlow's ops: one entry for each type of op.

What TensorFlow's own definition of an op says (whether it has state, calls
functions, or takes a shape) is read there; all else stands in `_TABLE`, as
traits: what the entries of an output are, then what happens to sizes, then
what happens to state. A trait is a bit, so that an op has several of them:
`has(op, LINEAR | SUMS)` tells whether it has one of these.

The source of an op is the input whose entries it moves, see `source_of`.
"""

import dataclasses
import itertools

import tensorflow as tf

from keras_pergrad.keras_internals.graphs.nodes import op_definition

_BITS = (1 << k for k in itertools.count())

#: Those of its source, each once, in another order or shape.
ARRANGES = next(_BITS)
#: Some of those of its source.
TAKES_PARTS = next(_BITS)
#: Those of its source, several times.
REPEATS = next(_BITS)
#: Entries of its source.
MOVES = ARRANGES | TAKES_PARTS | REPEATS
#: Those of several inputs, beside each other.
JOINS = next(_BITS)
#: Linear in its source, if all other inputs are constants.
LINEAR = next(_BITS)
#: Each of its source as it is or negated, maybe in another dtype.
CONVERTS = next(_BITS)
#: Such entries, or sums or means of some.
ADDS_UP = next(_BITS)
#: Linear in all inputs together.
SUMS = next(_BITS)
#: Products of the inputs' entries, sums of such products, and quotients.
SCALES, CONTRACTS, DIVIDES = (next(_BITS) for _ in range(3))
#: Those of one of two inputs, as the first one tells.
SELECTS = next(_BITS)
#: The same, whatever the entries of its inputs are; where these allow it.
IS_CONSTANT, MAY_BE_CONSTANT = (next(_BITS) for _ in range(2))

#: Gives sizes of what it is given; measures a tensor.
GIVES_SIZES, MEASURES = (next(_BITS) for _ in range(2))
#: Of sizes it gives sizes, or products of some.
SIZE_PRODUCTS = next(_BITS)
#: Of sizes it gives sums of some.
SIZE_SUMS = next(_BITS)
#: Does the same for every number of samples.
REGULAR = next(_BITS)
#: Has its shape from those of the inputs.
SHAPED_BY_INPUTS = next(_BITS)
#: Takes sizes or places, as inputs that have one of `_SIZE_NAMES`. What follows
#: the number of samples there gives a tensor its shape, not its values.
TAKES_SIZES = next(_BITS)
#: Has the shape that it is told; no entry follows from how many there are.
FILLS_SHAPE = next(_BITS)
#: Its shape is better known once it, or the list that it takes, is typed.
SHAPED_BY_TYPE = next(_BITS)
#: Is evaluated where its inputs are numbers that shapes determine.
EVALUATED = next(_BITS)
PADS = next(_BITS)

#: Reads what is behind its first input, or changes it by the others.
READS, ASSIGNS = (next(_BITS) for _ in range(2))
#: Changes each entry of it by that of its input, and no part.
ASSIGNS_WHOLE = next(_BITS)
#: Passes on each handle that it is given.
FORWARDS = next(_BITS)
#: Draws other numbers each time; advances the state behind a handle with it.
DRAWS, ADVANCES = (next(_BITS) for _ in range(2))
#: Has an effect outside of the step that no op of it can read.
TELLS = next(_BITS)
#: Is called stateful by TensorFlow, though all it gives is from its inputs or
#: the same for all samples.
FROM_INPUTS = next(_BITS)
#: Reads files, without state of its own: the step may have written them.
READS_FILES = next(_BITS)
#: It is known what it does with state.
KNOWN_STATE = ASSIGNS | READS | DRAWS | TELLS | FROM_INPUTS

#: Calls a function, one of several, or one again and again.
CALLS_FUNCTION, IS_CONDITION, IS_LOOP = (next(_BITS) for _ in range(3))
CALLS = CALLS_FUNCTION | IS_CONDITION | IS_LOOP
#: Makes, changes or measures lists of tensors; gives what is in them.
ON_LISTS, READS_LISTS = (next(_BITS) for _ in range(2))
#: Python computes it, from anything, also without inputs.
IN_PYTHON = next(_BITS)
#: What it gives has the type `Free`, or one that was set before.
IS_GIVEN = next(_BITS)

_WHOLE = ARRANGES | LINEAR | REGULAR
_PARTS = TAKES_PARTS | LINEAR
_TABLE = {
    "Const NoOp Placeholder": IS_GIVEN,
    "Rank Shape ShapeN Size": GIVES_SIZES | MEASURES,
    "TensorListElementShape": GIVES_SIZES | READS_LISTS,
    # Entries in another order or shape, parts of them, or more of them.
    "Identity": _WHOLE | EVALUATED | SIZE_PRODUCTS | FORWARDS,
    "IdentityN": REGULAR | FORWARDS,
    "CheckNumerics CheckNumericsV2 DebugIdentityV2 DebugIdentityV3 "
    "PreventGradient Snapshot": _WHOLE,
    "StopGradient": _WHOLE | EVALUATED,
    "EnsureShape": _WHOLE | EVALUATED | SHAPED_BY_TYPE,
    "ExpandDims Squeeze": _WHOLE | EVALUATED | SIZE_PRODUCTS | SHAPED_BY_INPUTS,
    "Reshape": _WHOLE | EVALUATED | SIZE_PRODUCTS | TAKES_SIZES | FILLS_SHAPE,
    "Reverse ReverseV2": _WHOLE | EVALUATED | SHAPED_BY_INPUTS,
    "Transpose": _WHOLE | EVALUATED | TAKES_SIZES,
    "Roll": ARRANGES | LINEAR | EVALUATED,
    "GatherNd": _PARTS | SHAPED_BY_INPUTS,
    "GatherV2": _PARTS | EVALUATED | SIZE_PRODUCTS | SHAPED_BY_INPUTS,
    "Slice SplitV StridedSlice": _PARTS
    | EVALUATED
    | SIZE_PRODUCTS
    | TAKES_SIZES,
    "Split Unpack": _PARTS
    | EVALUATED
    | SIZE_PRODUCTS
    | REGULAR
    | SHAPED_BY_INPUTS,
    "XlaDynamicSlice": _PARTS,
    "BroadcastTo Tile": REPEATS
    | LINEAR
    | REGULAR
    | EVALUATED
    | TAKES_SIZES
    | FILLS_SHAPE,
    "Fill": REPEATS | REGULAR | EVALUATED | TAKES_SIZES | FILLS_SHAPE,
    "Concat": JOINS,
    "ConcatV2 Pack": JOINS
    | REGULAR
    | EVALUATED
    | SIZE_PRODUCTS
    | SHAPED_BY_INPUTS,
    # Arithmetic.
    "AccumulateNV2": SUMS,
    "Add AddN AddV2 Sub": SUMS | REGULAR | EVALUATED,
    "Cast": LINEAR | CONVERTS | ADDS_UP | EVALUATED | SIZE_PRODUCTS,
    "Conj Imag PlaceholderWithDefault": LINEAR,
    "Real": LINEAR | ADDS_UP,
    "Cumsum": LINEAR | REGULAR | EVALUATED | SHAPED_BY_INPUTS,
    "Mean": LINEAR | ADDS_UP | TAKES_SIZES,
    "Neg": LINEAR | CONVERTS | ADDS_UP | REGULAR | EVALUATED,
    "Pad": LINEAR | REGULAR | EVALUATED | TAKES_SIZES | PADS,
    "PadV2": REGULAR | EVALUATED | TAKES_SIZES | PADS,
    "Sum": LINEAR | ADDS_UP | REGULAR | EVALUATED | TAKES_SIZES,
    "Mul": SCALES | EVALUATED | SIZE_PRODUCTS,
    "MulNoNan": SCALES,
    "BatchMatMul BatchMatMulV2 BatchMatMulV3 Einsum MatMul": CONTRACTS,
    "Div DivNoNan": DIVIDES,
    "RealDiv": DIVIDES | EVALUATED,
    "Select SelectV2": SELECTS | REGULAR | EVALUATED,
    "OnesLike ZerosLike": IS_CONSTANT | REGULAR | EVALUATED,
    "DynamicStitch Range Square": REGULAR | EVALUATED,
    "BroadcastArgs BroadcastGradientArgs": REGULAR | EVALUATED | TAKES_SIZES,
    "ConcatOffset": REGULAR | EVALUATED | SIZE_SUMS | SHAPED_BY_INPUTS,
    "InvertPermutation": REGULAR | EVALUATED | SHAPED_BY_INPUTS,
    "Prod": REGULAR | EVALUATED | SIZE_PRODUCTS | SHAPED_BY_INPUTS,
    "All Any ArgMax ArgMin Max Min": EVALUATED | SHAPED_BY_INPUTS,
    "OneHot ScatterNd": EVALUATED | TAKES_SIZES,
    "Equal Maximum Minimum": EVALUATED | MAY_BE_CONSTANT,
    "Abs Bitcast Bucketize FloorDiv FloorMod Greater GreaterEqual LeftShift "
    "Less LessEqual ListDiff LogicalAnd LogicalNot LogicalOr MatrixBandPart "
    "Mod NotEqual RightShift Sign TensorScatterUpdate TruncateDiv TruncateMod "
    "Unique Where": EVALUATED,
    "AvgPool3DGrad AvgPoolGrad Conv2DBackpropFilter Conv2DBackpropInput "
    "Conv3DBackpropFilterV2 Conv3DBackpropInputV2 "
    "DepthwiseConv2dNativeBackpropFilter DepthwiseConv2dNativeBackpropInput "
    "MatrixDiagV3 ResizeNearestNeighborGrad StridedSliceGrad "
    "UnsortedSegmentSum": TAKES_SIZES,
    "StatelessRandomBinomial StatelessRandomGammaV2 StatelessRandomGammaV3 "
    "StatelessRandomNormal StatelessRandomNormalV2 StatelessRandomPoisson "
    "StatelessRandomUniform StatelessRandomUniformFullIntV2 "
    "StatelessRandomUniformInt StatelessRandomUniformIntV2 "
    "StatelessRandomUniformV2 StatelessTruncatedNormal "
    "StatelessTruncatedNormalV2": TAKES_SIZES | FILLS_SHAPE,
    "StatelessMultinomial StatelessParameterizedTruncatedNormal "
    "StatelessRandomUniformFullInt": FILLS_SHAPE,
    "DenseBincount": SHAPED_BY_TYPE,
    # Calls, lists and Python.
    "PartitionedCall StatefulPartitionedCall": CALLS_FUNCTION,
    "Case If StatelessCase StatelessIf": IS_CONDITION,
    "StatelessWhile While": IS_LOOP,
    "EmptyTensorList TensorListFromTensor TensorListReserve": ON_LISTS
    | TAKES_SIZES,
    "OptionalFromValue TensorListPushBack TensorListResize "
    "TensorListSetItem": ON_LISTS,
    "OptionalGetValue TensorListGather": READS_LISTS | SHAPED_BY_TYPE,
    "TensorListConcatV2": READS_LISTS | SHAPED_BY_TYPE | TAKES_SIZES,
    "TensorListGetItem TensorListStack": READS_LISTS
    | SHAPED_BY_TYPE
    | TAKES_SIZES
    | REGULAR,
    "TensorListLength": ON_LISTS | GIVES_SIZES,
    "TensorListPopBack": ON_LISTS | SHAPED_BY_TYPE | TAKES_SIZES | REGULAR,
    "EagerPyFunc PyFunc PyFuncStateless": IN_PYTHON | SHAPED_BY_TYPE,
    # State.
    "AssignAddVariableOp AssignSubVariableOp AssignVariableOp": ASSIGNS
    | ASSIGNS_WHOLE,
    "LookupTableImportV2 LookupTableInsertV2 LookupTableRemoveV2 "
    "ResourceScatterAdd ResourceScatterDiv ResourceScatterMax "
    "ResourceScatterMin ResourceScatterMul ResourceScatterNdAdd "
    "ResourceScatterNdMax ResourceScatterNdMin ResourceScatterNdSub "
    "ResourceScatterNdUpdate ResourceScatterSub ResourceScatterUpdate "
    "ResourceStridedSliceAssign": ASSIGNS,
    "LookupTableExportV2 LookupTableSizeV2 ReadVariableOp ResourceGather "
    "ResourceGatherNd": READS,
    "LookupTableFindV2": READS | SHAPED_BY_TYPE,
    "VariableShape": READS | GIVES_SIZES,
    "RngReadAndSkip RngSkip": DRAWS | ADVANCES | TAKES_SIZES,
    "StatefulStandardNormalV2 StatefulUniform": DRAWS
    | ADVANCES
    | TAKES_SIZES
    | FILLS_SHAPE,
    "StatefulRandomBinomial StatefulTruncatedNormal StatefulUniformFullInt "
    "StatefulUniformInt": DRAWS | ADVANCES | FILLS_SHAPE,
    "RandomStandardNormal RandomUniform RandomUniformInt TruncatedNormal": DRAWS
    | TAKES_SIZES
    | FILLS_SHAPE,
    "Multinomial RandomGamma RandomPoisson RandomPoissonV2": DRAWS
    | FILLS_SHAPE,
    "AllCandidateSampler FixedUnigramCandidateSampler "
    "LearnedUnigramCandidateSampler LogUniformCandidateSampler "
    "NonDeterministicInts ParameterizedTruncatedNormal RandomCrop "
    "RandomShuffle SampleDistortedBoundingBox SampleDistortedBoundingBoxV2 "
    "ThreadUnsafeUnigramCandidateSampler UniformCandidateSampler": DRAWS,
    "Assert DisableCopyOnRead FlushSummaryWriter PrintV2 WriteAudioSummary "
    "WriteGraphSummary WriteHistogramSummary WriteImageSummary "
    "WriteRawProtoSummary WriteScalarSummary WriteSummary": TELLS,
    "Empty": FROM_INPUTS | TAKES_SIZES | FILLS_SHAPE,
    "CudnnRNN CudnnRNNBackprop CudnnRNNBackpropV2 CudnnRNNBackpropV3 "
    "CudnnRNNV2 CudnnRNNV3 DeepCopy DeviceIndex GuaranteeConst "
    "StatelessRandomGetAlg Timestamp VarIsInitializedOp": FROM_INPUTS,
    "MatchingFiles ReadFile": READS_FILES,
}
_TRAITS = {
    op_type: traits
    for names, traits in _TABLE.items()
    for op_type in names.split()
}
#: The place of the source among the inputs, where it is not the first.
_SOURCES = {"Concat": 1, "Fill": 1, "Split": 1}
_SIZE_NAMES = set(
    """
    begin delta depth dims element_shape end filter_sizes index input_sizes k
    leading_dims max_num_elements multiples num_cols num_elements num_rows
    num_segments orig_input_shape paddings perm reduction_indices s0 s1 shape
    size size_splits split_dim strides
    """.split()  # noqa: SIM905
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
        traits: its traits in the table.
        has_state: whether it keeps state, or takes or gives a handle of some.
        has_functions: whether it has functions among its attributes.
        may_keep_state: whether it has state, or no definition that tells.
        size_inputs: the places of inputs that are sizes or places.
        arguments: its `Argument`s.
        takes_several: whether one of them may have several tensors.
    """

    traits: int
    has_state: bool
    may_keep_state: bool
    has_functions: bool
    size_inputs: tuple
    arguments: tuple
    takes_several: bool

    def has(self, traits):
        """Whether it has one of these traits."""
        return bool(self.traits & traits)

    def arguments_of(self, op):
        """Return the `Argument` of each input of an op."""
        if not self.arguments:  # It has no definition.
            return [Argument(k, str(k)) for k in range(len(op.inputs))]
        if not self.takes_several:
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
        traits = _TRAITS.get(op_type, 0)
        has_state = is_stateful or handles or bool(traits & READS_FILES)
        return cls(
            traits=traits,
            has_state=has_state,
            may_keep_state=has_state or definition is None,
            has_functions=any(
                a.type in ("func", "list(func)") for a in attributes
            ),
            size_inputs=tuple(
                k
                for k, a in enumerate(inputs)
                if traits & TAKES_SIZES and a.name in _SIZE_NAMES
            ),
            arguments=tuple(
                Argument(k, a.name, a.number_attr or a.type_list_attr)
                for k, a in enumerate(inputs)
            ),
            takes_several=any(
                a.number_attr or a.type_list_attr for a in inputs
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


def has(op, traits):
    """Whether an op has one of these traits."""
    return FACTS[op.type].has(traits)


def ops_with(traits):
    """Return the types of all ops that have one of these traits."""
    return frozenset(t for t, found in _TRAITS.items() if found & traits)


def source_of(op):
    """Return the place of the input whose entries an op moves."""
    return _SOURCES.get(op.type, 0)
