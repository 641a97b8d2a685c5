"""Refusals of losses and inputs that have no per-sample gradients."""


def composite(layer):
    """Say that a layer with weights is given a sparse or ragged tensor."""
    return (
        f"layer {layer.name!r} ({type(layer).__name__}) is given a sparse or "
        "ragged tensor, whose samples cannot be told apart. Densify it, in "
        "the data set or in a layer without weights before this one, or use "
        "gradient_mode='batch'."
    )


def not_dense(part):
    """Say that a batch to be split holds sparse or ragged tensors."""
    return (
        f"gradient_mode='accumulated' takes a batch apart into microbatches, "
        f"which is done with dense tensors only. Received: a "
        f"{type(part).__name__} in the batch. Densify it in the data set "
        "(tf.sparse.to_dense, RaggedTensor.to_tensor), or use "
        "gradient_mode='batch'."
    )


def one_batch_size(layer, batch_size):
    """Say that a layer or model is made for batches of one size."""
    what = f"layer {layer.name!r} ({type(layer).__name__})"
    return (
        f"{what} is stateful, made for batches of {batch_size}: it hands a "
        "state from each batch to the next. gradient_mode='per_sample' calls "
        "the model with one sample at a time, for which that state is not "
        "defined. Use stateful=False, or gradient_mode='batch'."
    )


def fixed_batch_size(model, batch_size):
    """Say that the inputs of a model must tell how many samples there are."""
    return (
        f"model {model.name!r} takes batches of {batch_size} only, as its "
        "inputs say (batch_shape or batch_size), but "
        "gradient_mode='per_sample' calls it with one sample at a time. "
        "Leave the batch size open, as keras.Input(shape) does, or use "
        "gradient_mode='batch'."
    )


def not_one_number(received):
    """Say that the loss of the batch is not a scalar."""
    return (
        f"The loss must be one number for the batch. Received: {received}. "
        "Give the loss a reduction, such as reduction='sum_over_batch_size', "
        "not None or 'none'."
    )
