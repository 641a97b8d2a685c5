"""Refusals of models whose samples have no per-sample gradients."""

import keras

COMPOSITE = (
    "The batch has a sparse or ragged tensor, whose samples cannot be told "
    "apart. Densify it in the data set, or use gradient_mode='batch'."
)
#: Keras layers that mix images for some random draws, or some values.
MIX_BY_CHANCE = tuple(
    getattr(keras.layers, name)
    for name in ("AugMix", "CutMix", "Equalization", "MixUp", "RandAugment")
    if hasattr(keras.layers, name)
)
#: Layers that treat each microbatch as a batch, as their users expect.
OF_MICROBATCHES = (keras.layers.BatchNormalization, *MIX_BY_CHANCE)
_WAY_OUT = (
    "Make it act on each sample alone, or compile with gradient_mode='batch'."
)


def _named(layer):
    return f"layer {layer.name!r} ({type(layer).__name__})"


def mixes(model, layer, op, draws):
    """Say that samples meet in an op."""
    where = f"model {model.name!r}" if layer is None else _named(layer)
    if draws:
        return (
            f"{where} draws numbers by the op {op.type} ({op.name}), which "
            "gives others each time, so that its samples cannot be told "
            "apart. Draw with keras.random and a SeedGenerator, or use "
            "gradient_mode='batch'."
        )
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
        f"{where} mixes the samples of a batch in the op {op.type} "
        f"({op.name}): a sample's output depends on other samples, so that "
        f"per-sample gradients are not defined. {_WAY_OUT}"
    )


def other_ops(candidate, seen):
    """Say that the step has another op with weights than the trial had."""
    found = "none" if candidate is None else candidate.op.type
    if candidate is not None:
        found += f" ({candidate.op.name})"
    tried = "none" if seen is None else seen.kind
    return (
        f"The step uses a weight in the op {found}, where the trial on a few "
        f"samples used it in {tried}, so that it is not known where its "
        "samples are. Let the model do the same in every call (no Python "
        "state that changes), or use gradient_mode='per_sample'."
    )


def mixes_by_chance(layer):
    """Say that a Keras layer mixes images for some random draws."""
    return (
        f"{_named(layer)} mixes the images of a batch, or takes one histogram "
        "for all of them, so that per-sample gradients are not defined. Apply "
        "it to the data set, with its labels, before the model: "
        "data.map(...); or compile with gradient_mode='batch'."
    )


def mixes_somewhere(model):
    """Say that samples are mixed at a place that was not found."""
    return (
        f"model {model.name!r} mixes the samples of a batch, so that "
        f"per-sample gradients are not defined. {_WAY_OUT}"
    )


def loss_couples(model, op):
    """Say that a sample's part of the loss depends on other samples."""
    return (
        f"The loss of model {model.name!r} compares the samples of a batch "
        f"with each other (op {op.type}, {op.name}): what one sample's "
        "output contributes depends on the outputs of others, so that "
        "per-sample gradients are not defined. Use a sum or a mean of losses "
        "of each sample by itself, or compile with gradient_mode='batch'."
    )


def no_samples(use):
    """Say that an op with weights and data has no axis for the samples."""
    paths = ", ".join(
        sorted(
            {
                repr(use.variables[k].path)
                for place in use.candidate.weights
                for k in use.variables_in(place)
            }
        )
    )
    return (
        f"The loss depends on {paths} in the op {use.type} ({use.op.name}), "
        "where the samples are no longer apart: no sample's part in the "
        "gradient is known. Use the weight on each sample's own values, put "
        "a penalty on weights into a `kernel_regularizer` (or "
        "`add_weight(regularizer=...)`), or compile with "
        "gradient_mode='batch'."
    )


def cannot_be_tried(model, error):
    """Say that the model fails on all batches that can be made up."""
    return (
        f"Model {model.name!r} could not be tried out on a few samples, which "
        "tells where its samples are and whether it mixes them. Expected a "
        "model that takes made-up inputs of its shapes (integers of 0 to 2), "
        "or arrays in fit(). Received: "
        f"{_first_line(error)}. Use gradient_mode='per_sample' or 'batch'."
    )


def _first_line(error):
    text = getattr(error, "message", None) or str(error)
    lines = [one.strip() for one in text.splitlines() if one.strip()]
    if lines and lines[0].startswith("Graph execution error"):
        # The reason comes before the names of the nodes.
        nodes = [k for k, one in enumerate(lines) if one.startswith("[[")]
        lines = lines[nodes[0] - 1 :] if nodes else lines[1:]
    return lines[0][:300] if lines else type(error).__name__


def incomplete_rule(layer, paths):
    """Say that a rule leaves out variables that its layer reads."""
    return (
        f"{_named(layer)} reads {paths}, for which its rule gives no "
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


def counts(model, repeated):
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
        f"{_named(layer)} has a rule, which needs the samples on the first "
        "axis, and is called where they are elsewhere. Keep (batch, ...) as "
        "the layout, or use gradient_mode='batch'."
    )
