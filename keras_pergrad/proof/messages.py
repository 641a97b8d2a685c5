"""Refusals of models whose samples have no per-sample gradients."""

import re

import keras

from keras_pergrad.proof.layer_methods import pads_to_longest

COMPOSITE = (
    "The batch has a sparse or ragged tensor, whose samples cannot be "
    "distinguished. Densify it in the data set, or use gradient_mode='batch'."
)
#: Keras layers that mix images for some random draws, or some values.
MIX_BY_CHANCE = tuple(
    getattr(keras.layers, name)
    for name in ("AugMix", "CutMix", "Equalization", "MixUp", "RandAugment")
    if hasattr(keras.layers, name)
)
#: Layers that treat each microbatch as a batch, as their users expect.
OF_MICROBATCHES = (keras.layers.BatchNormalization, *MIX_BY_CHANCE)
#: Why what depends on the number of samples is refused.
_REPETITION_EFFECTS = {
    "sample": "and the pass is repeated for each sample alone here, which "
    "would change it",
    "microbatch": "and is computed for each microbatch here, with another "
    "number of samples",
    "example": "so that each example's gradient depends on how many others "
    "there are",
}
#: Layers whose ops have no rules, and that treat each sample by itself.
PER_SAMPLE_LAYERS = tuple(
    getattr(keras.layers, name)
    for name in (
        "CategoryEncoding",
        "HashedCrossing",
        "TextVectorization",
    )
    if hasattr(keras.layers, name)
)
#: Why samples are refused whose parts have different sums as factors.
UNEQUAL = (
    "weighs samples unequally, by sums over the masks or targets of all of them"
)
NEITHER_SUM_NOR_MEAN = (
    "A loss given to `add_loss`, or one of your own that gives one number for "
    "the batch, is neither a sum nor a mean over the samples of the batch, so "
    "that no sample's part in it is defined. Reduce it with ops.sum or "
    "ops.mean over all axes, or use gradient_mode='batch'."
)
#: The way out for CTC losses of sparse labels.
CTC = (
    "For a CTC loss, use keras.losses.CTC, which takes padded labels and is "
    "served."
)
_WAY_OUT = (
    "Make it act on each sample alone, or compile with gradient_mode='batch'."
)


def _layer_label(layer):
    return f"layer {layer.name!r} ({type(layer).__name__})"


def _mixing_layer(layer):
    """Return a layer, or the one inside of it that is known to mix.

    `TimeDistributed` calls the layer inside without a scope of its own.
    """
    if isinstance(layer, keras.layers.TimeDistributed):
        inner = _mixing_layer(layer.layer)
        is_known = (*MIX_BY_CHANCE, keras.layers.BatchNormalization)
        return inner if isinstance(inner, is_known) else layer
    return layer


def mixing_op(model, layer, mixed):
    """Say that samples meet in an op; mixed: a `Mixed`."""
    layer = _mixing_layer(layer)
    where = f"model {model.name!r}" if layer is None else _layer_label(layer)
    if isinstance(layer, MIX_BY_CHANCE):
        return mixes_by_chance(layer)
    if isinstance(layer, keras.layers.BatchNormalization):
        return (
            f"{where} makes every sample's output depend on the whole batch "
            "while training, so that per-sample gradients are not defined. "
            "Replace it: keras_pergrad.replace_batch_norm(model) gives an "
            "equal model with GroupNormalization; or set `trainable = False` "
            f"on {layer.name!r} before compile() so that it uses its moving "
            "statistics, or compile with gradient_mode='batch'."
        )
    return (
        f"{where} mixes the samples of a batch in the op {mixed.op_type} "
        f"({mixed.op_name}), which {mixed.why}: a sample's output depends on "
        f"other samples, so that per-sample gradients are not defined. "
        f"{_WAY_OUT}"
    )


def untyped_op(model, layer, mixed):
    """Say that it is not known what an op does with samples."""
    layer = _mixing_layer(layer)
    if isinstance(layer, (*MIX_BY_CHANCE, keras.layers.BatchNormalization)):
        return mixing_op(model, layer, mixed)
    where = f"model {model.name!r}" if layer is None else _layer_label(layer)
    name = mixed.op_type if layer is None else layer.name
    if pads_to_longest(layer):
        return (
            f"{where} pads each text to the longest one of the batch, so that "
            "the samples depend on each other. Give it a length: "
            "TextVectorization(output_sequence_length=...); or apply it to "
            "the data set, with a length, before the model; or compile with "
            "gradient_mode='batch'."
        )
    return (
        f"{where} has the op {mixed.op_type} ({mixed.op_name}), of which it "
        "is not known whether it keeps the samples separate: "
        f"{mixed.why}. Tell it by a rule: "
        f"keras_pergrad.extending.register_type_rule({mixed.op_type!r}); "
        "or, if you know that it treats each sample by itself and leaves the "
        "samples on their axis, vouch for it: compile(vouched="
        f"[{name!r}]); or compile with gradient_mode='batch'."
    )


def behind_vouched(layer, op_type, op_name):
    """Hint at a vouched layer as a reason why samples are not separate."""
    return (
        f"Or the reason is {_layer_label(layer)}, which is vouched for: "
        f"behind its op {op_type} ({op_name}) samples are known to be separate "
        "only on an axis as long as the batch. Write it with tensors of the "
        "shape (batch, ...) and a mask."
    )


def shapes_unknown(model, error):
    """Say that no sizes were found for axes whose size is not known.

    `error`: a `ShapesUnknown`.
    """
    if error.number is not None:
        reason = _with_n(_first_line(error.reason), error.number)
        return (
            f"The shapes in model {model.name!r} do not fit for every number "
            f"of samples n: {reason}. Correct the shapes in that op; or, if "
            "they are meant for one number of samples, give batches of that "
            "size: dataset.batch(n, drop_remainder=True)."
        )
    return (
        f"The step of model {model.name!r} is typed with numbers for the "
        f"lengths that are not known while tracing "
        f"({error.axes or 'the number of samples'}), and none that were tried "
        f"fit all its ops: {_first_line(error.reason)}. Declare the lengths in "
        "the signature of the data (tf.TensorSpec, or `padded_shapes` of "
        "padded_batch), or use gradient_mode='batch'."
    )


def output_elsewhere(model, number, output):
    """Say that an output's samples are not on its first axis."""
    return (
        f"Output {number} of model {model.name!r} does not have its samples "
        "on the first axis, one entry each, by which one sample is taken from "
        "a batch. Expected shape (samples, ...). Received: "
        f"{tuple(output.shape)}. Stack tensors with keras.ops.stack(tensors, "
        "axis=1), and split them in the loss likewise; or use "
        "gradient_mode='vectorized' (in functions method='vectorized'), which "
        "needs no such axis."
    )


def number_must_be_known(model, error):
    """Say that a step is traced with a known number of samples alone."""
    return (
        f"Model {model.name!r} is called for each sample alone here, and could "
        "be traced for the number of samples in the batch, not for any: "
        f"{_first_line(error)}. So it is not known whether a sample's output "
        "follows that number. Take it from ops.shape(x)[0], which may be open, "
        "instead of x.shape[0], or use gradient_mode='vectorized'."
    )


def other_rank_alone(model):
    """Say that a sample alone gives outputs of another rank."""
    return (
        f"Model {model.name!r} gives outputs with another number of axes for a "
        "sample alone than for a batch, as ops.squeeze(x) without an axis "
        "does. Name the axes, or use gradient_mode='vectorized'."
    )


def follows_size(model, repeated):
    """Say that outputs follow the number of samples, or their places."""
    return (
        f"The outputs of model {model.name!r} depend on the number of samples "
        "in its batch, on a sample's place in it, or on a sum over all masks "
        f"in it, {_REPETITION_EFFECTS[repeated]}. Leave these out of the "
        "computation, or use gradient_mode='vectorized' or 'batch'."
    )


def divided_outputs(model):
    """Say that outputs are multiplied by sums over all masks."""
    return (
        f"Model {model.name!r} mixes the samples of a batch: its outputs are "
        "multiplied or divided by a sum over the masks or sample weights of "
        "all of them, so that per-sample gradients are not defined. Divide by "
        "it in the loss instead (compile(loss=...) or add_loss), where it is "
        "the same for all samples, or compile with gradient_mode='batch'."
    )


def loss_follows_size(model, repeated):
    """Say that losses follow the number of samples, or their masks."""
    return (
        f"A loss of model {model.name!r} divides by the number of samples in "
        "the batch, or by a sum of all their masks, in its own code, "
        f"{_REPETITION_EFFECTS[repeated]}. "
        "Return one value for each sample and let the loss's "
        "`reduction` divide ('sum_over_batch_size' or "
        "'mean_with_sample_weight'), or use gradient_mode='vectorized' or "
        "'batch'."
    )


def mixes_by_chance(layer):
    """Say that a Keras layer mixes images for some random draws."""
    return (
        f"{_layer_label(layer)} mixes the images of a batch, or takes one "
        "histogram for all of them, so that per-sample gradients are not "
        "defined. Apply it to the data set, with its labels, before the model: "
        "data.map(...); or compile with gradient_mode='batch'."
    )


def hinge_labels(model):
    """Say that a hinge loss looks at all targets."""
    return (
        f"A loss of model {model.name!r} looks at the targets of all samples "
        "to tell whether they are 0 and 1, as Keras's hinge losses do, so that "
        "one example can change the gradients of the others. Use a loss that "
        "takes targets of -1 and 1 as they are, such as "
        "ops.mean(ops.relu(1 - y_true * y_pred), -1)."
    )


def loss_couples(model, mixed):
    """Say that a sample's part of the loss depends on other samples."""
    op_type = getattr(mixed, "op_type", None) or mixed.type
    op_name = getattr(mixed, "op_name", None) or mixed.name
    if op_type == "Where":
        return (
            f"The loss of model {model.name!r} picks entries of all samples by "
            f"their values (op Where, {op_name}), as tf.boolean_mask and "
            "tensor[mask] do, and what is picked no longer tells which sample "
            "it is of. Keep all entries and let the others be zero: "
            "tf.where(mask, values, 0.0) on the losses (and, where labels may "
            "be NaN, on the labels before), or give weights of zero as "
            "`sample_weight`; or compile with gradient_mode='batch'."
        )
    why = getattr(mixed, "why", None)
    if why == UNEQUAL:
        return (
            f"The loss of model {model.name!r} mixes the samples of a batch in "
            f"the op {op_type} ({op_name}), which {why}. A loss may be "
            "divided by a sum over all masks or weights if it is one and the "
            "same for all its terms. Divide all terms by the same "
            "sum, or each sample's part by its own; or give each term as a "
            "loss of its own to compile(loss=...) or add_loss; or compile with "
            "gradient_mode='batch'."
        )
    # Which length is open, the reader cannot see in the op.
    reason = f", which {why}" if op_type == "Reshape" and why else ""
    return (
        f"The loss of model {model.name!r} compares the samples of a batch "
        f"with each other (op {op_type}, {op_name}{reason}): what one sample's "
        "output contributes depends on the outputs of others, so that "
        "per-sample gradients are not defined. Use a sum or a mean of losses "
        "of each sample by itself, or compile with gradient_mode='batch'."
    )


def custom_gradient(layer, op):
    """Say that an own gradient of weights is not linear."""
    where = "A function" if layer is None else f"layer {layer.name!r}"
    return (
        f"{where} has a gradient of its own for weights (tf.custom_gradient, "
        f"op {op.name}) that is not linear in the gradient it is given, or "
        "does not follow it: the part of each sample in it is not defined. "
        "Use such a gradient on the samples, before they meet the weights, or "
        "compile with gradient_mode='batch'."
    )


def overridden_gradient(op):
    """Say that it is not known whether XLA's tape heeds another gradient."""
    return (
        f"The op {op.type} ({op.name}) was made under "
        "tf.Graph.gradient_override_map. A tape, such as keras.Model's, heeds "
        "that in functions that the step calls and nowhere else, and under "
        "XLA these cannot be distinguished here. Compile with "
        "jit_compile=False, or write the gradient with tf.custom_gradient."
    )


def no_samples(candidate, uses, variables):
    """Say that an op with weights and data has no axis for the samples."""
    paths = ", ".join(
        sorted(
            {
                repr(variables[k].path)
                for input_index in candidate.weights
                for k in uses.variables_in(candidate.op.inputs[input_index])
            }
        )
    )
    return (
        f"The loss depends on {paths} in the op {candidate.op.type} "
        f"({candidate.op.name}), "
        "where the samples are no longer separate: no sample's term of "
        "the gradient is known. Use the weight on each sample's own values, "
        "put a penalty on weights into a `kernel_regularizer` (or "
        "`add_weight(regularizer=...)`), or compile with "
        "gradient_mode='batch'."
    )


def _first_line(error):
    text = getattr(error, "message", None) or str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if lines and lines[0].startswith("Graph execution error"):
        # The reason comes before the names of the nodes.
        nodes = [k for k, line in enumerate(lines) if line.startswith("[[")]
        lines = lines[nodes[0] - 1 :] if nodes else lines[1:]
    return lines[0][:300].rstrip(".") if lines else type(error).__name__


def _with_n(text, number):
    """Return a text with n in place of a number of samples."""

    def named(match):
        times, rest = divmod(int(match[0]), number)
        if rest or not times:
            return match[0]
        return "n" if times == 1 else f"{times}n"

    # No number that is a part of a name.
    return re.sub(r"(?<![\w./])\d+(?![\w/]|\.\d)", named, text)


def incomplete_rule(layer, paths):
    """Say that a rule leaves out variables that its layer reads."""
    return (
        f"{_layer_label(layer)} reads {paths}, for which its rule gives no "
        "gradient. Let the rule yield these variables, too, or remove the "
        "rule: the ops of the layer's own `call` are then looked at."
    )


def entangled(op):
    """Say that the outputs of an op without a rule depend on each other."""
    return (
        f"The op {op.type} ({op.name}) has no rule, and what is taken out of "
        "it depends on other outputs of it in more than one way, so that it "
        "cannot be differentiated for one sample after the other. Take the "
        "weight out of the loop, or use gradient_mode='per_sample'."
    )


def slow_op(model, op, reason):
    """Say that an op is differentiated once for each sample."""
    return (
        f"Per-sample gradients of model {model.name!r} are slow in the op "
        f"{op.type} ({op.name}), which is differentiated once for each sample "
        f"({reason}). Let weights meet the samples in ops with a rule, such as "
        "products, convolutions, look-ups and elementwise ops, outside of "
        "loops and conditions; or register a rule for the layer "
        "(keras_pergrad.extending.register_rule). keras_pergrad.explain(model) "
        "lists such ops."
    )


def one_by_one_with_noise(op, reason):
    """Say that noise does not hide what an op without a rule may leave out."""
    return (
        f"The op {op.type} ({op.name}) is differentiated for one sample after "
        f"the other ({reason}). Expected ops with a rule where noise is added: "
        "here a sample that is not finite would make all others of its batch "
        "count as zero, which noise does not hide. Use "
        "PrivateTraining(method='per_sample') or PerSample(aggregation), which "
        "differentiate the whole model so; or let weights meet the samples in "
        "ops with a rule (no loop, condition or custom gradient around them)."
    )


def assigns_weights(paths, repeated):
    """Say that the forward pass assigns weights."""
    names = ", ".join(map(repr, paths))
    return (
        f"The forward pass assigns the trainable variables {names}, so that "
        f"it cannot be repeated for one {repeated} after the other. Use "
        "gradient_mode='vectorized', where it runs once"
        + {
            "sample": ".",
            "microbatch": ", or microbatches as large as a batch whose size "
            "is known, as of `dataset.batch(size, drop_remainder=True)`.",
        }[repeated]
    )


def unknown_assignments(model, repeated):
    """Say that each repetition would change the state of a layer."""
    return (
        f"A layer of model {model.name!r} assigns a tf.Variable that Keras "
        f"does not know, and the forward pass is repeated for each {repeated} "
        "here, which would change it as often. Make it a Keras variable "
        "(add_weight(trainable=False)) where each sample may repeat what the "
        "batch read, or use gradient_mode='vectorized'."
    )


def misplaced(layer):
    """Say that a layer with a rule must have samples on its first axis."""
    return (
        f"{_layer_label(layer)} has a rule, which needs the samples on the "
        "first axis, and is called where they are elsewhere. Keep "
        "(batch, ...) as the layout, or use gradient_mode='batch'."
    )
