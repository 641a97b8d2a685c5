"""What is said of losses and inputs that have no per-sample gradients."""


def composite(layer):
    """A layer with weights is given a sparse or ragged tensor."""
    return (
        f"layer {layer.name!r} ({type(layer).__name__}) is given a sparse or "
        "ragged tensor, whose samples cannot be told apart. Densify it, in "
        "the data set or in a layer without weights before this one, or use "
        "gradient_mode='batch'."
    )


def not_one_number(received):
    """The loss of the batch is not a scalar."""
    return (
        f"The loss must be one number for the batch. Received: {received}. "
        "Give the loss a reduction, such as reduction='sum_over_batch_size', "
        "not None or 'none'."
    )
