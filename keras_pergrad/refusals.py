"""What the tape says to layers whose samples it cannot tell apart."""


def layout(layer, size):
    """The samples are not on the first axis of what a layer was given."""
    where = "a layer"
    if layer is not None:
        where = f"layer {layer.name!r} ({type(layer).__name__})"
    return (
        f"{where} was called on a tensor whose first axis has {size} entries, "
        "not one for each sample: the samples are no longer on the first "
        "axis. Keep (batch, ...) as the layout (Dense, for example, acts on "
        "the last axis of any rank), or use gradient_mode='batch'."
    )


def out_of_sight(layer):
    """A layer is called where the tape cannot follow."""
    return (
        f"layer {layer.name!r} ({type(layer).__name__}) is called inside a "
        "tf.function, loop, condition or custom gradient (rematerialisation) "
        "of an enclosing layer, where its part in the gradient cannot be "
        "recorded. Take that away around the call (the train step is compiled "
        "as a whole anyway), or use gradient_mode='per_sample'."
    )


def composite(layer):
    """A layer with weights is given a sparse or ragged tensor."""
    return (
        f"layer {layer.name!r} ({type(layer).__name__}) is given a sparse or "
        "ragged tensor, whose samples cannot be told apart. Densify it, in "
        "the data set or in a layer without weights before this one, or use "
        "gradient_mode='batch'."
    )


def not_dense(part):
    """A batch that is to be taken apart holds sparse or ragged tensors."""
    return (
        f"gradient_mode='accumulated' takes a batch apart into microbatches, "
        f"which is done with dense tensors only. Received: a "
        f"{type(part).__name__} in the batch. Densify it in the data set "
        "(tf.sparse.to_dense, RaggedTensor.to_tensor), or use "
        "gradient_mode='batch'."
    )


def one_batch_size(layer, batch_size):
    """A layer or model is made for batches of one size."""
    what = f"layer {layer.name!r} ({type(layer).__name__})"
    return (
        f"{what} is stateful, made for batches of {batch_size}: it hands a "
        "state from each batch to the next. gradient_mode='per_sample' calls "
        "the model with one sample at a time, for which that state is not "
        "defined. Use stateful=False, or gradient_mode='batch'."
    )


def fixed_batch_size(model, batch_size):
    """The inputs of a model say how many samples there are."""
    return (
        f"model {model.name!r} takes batches of {batch_size} only, as its "
        "inputs say (batch_shape or batch_size), but "
        "gradient_mode='per_sample' calls it with one sample at a time. "
        "Leave the batch size open, as keras.Input(shape) does, or use "
        "gradient_mode='batch'."
    )


def not_one_number(received):
    """The loss of the batch is not a scalar."""
    return (
        f"The loss must be one number for the batch. Received: {received}. "
        "Give the loss a reduction, such as reduction='sum_over_batch_size', "
        "not None or 'none'."
    )


def missed(model, paths):
    """Variables that no recorded call has read."""
    return (
        f"no layer of model {model.name!r} was seen to read the trainable "
        f"variables {', '.join(map(repr, paths))} in the forward pass, so "
        "that their gradients are not known. If they are not used, set "
        "`trainable = False` on their layers before compile(); if they are, "
        "inside a custom gradient or rematerialisation, take that away or "
        "use gradient_mode='batch'."
    )


def own_loss(layer):
    """A layer adds a loss that depends on its own weights."""
    return (
        f"layer {layer.name!r} ({type(layer).__name__}) gives `add_loss` a "
        "loss that depends on its own weights, so that no sample's part in it "
        "is defined. Put a penalty on weights into a `kernel_regularizer` (or "
        "`add_weight(regularizer=...)`), or compute the loss in a layer of "
        "its own from this layer's output."
    )


def mixes(layer):
    """Samples meet inside a layer's call."""
    return (
        f"layer {layer.name!r} ({type(layer).__name__}) gives another output "
        "for a sample alone than for the same sample in its batch: it mixes "
        "the samples of a batch, so that per-sample gradients are not "
        "defined. Make it act on each sample alone, or use "
        "gradient_mode='batch'."
    )


def coupling_loss(layer):
    """A layer adds a loss of the samples together."""
    return (
        f"layer {layer.name!r} ({type(layer).__name__}) gives `add_loss` a "
        "loss that is neither a sum nor a mean over the samples of the batch, "
        "so that no sample's part in it is defined. Add a sum or a mean of "
        "what each sample alone gives, or use gradient_mode='batch'."
    )


def sideways(layer):
    """Why the fallback of the layer around serves another layer's weights."""
    return (
        f"it calls {layer.name!r} ({type(layer).__name__}) on a tensor whose "
        "first axis is not that of the samples"
    )
