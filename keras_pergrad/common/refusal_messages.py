"""Refusals of losses and inputs that have no per-sample gradients."""

import re

_BATCH_MODE_ADVICE = r"[,;]? or (?:compile with|use) gradient_mode='batch'"


def without_batch_mode(message):
    """Return a refusal without its advice to take another gradient mode."""
    return re.sub(_BATCH_MODE_ADVICE, "", message)


def no_loss(model):
    """Say that nothing was given to minimise."""
    return (
        f"Model {model.name!r} has no loss. Expected a `loss` argument in "
        "`compile()`, as in model.compile('adam', loss='mse'), or a layer that "
        "calls add_loss(). Received: neither. In a train_step of your own, "
        "PerGradModel.compute_gradients(loss_fn, x, y) needs no compiled loss; "
        "per_sample_gradients and functions like it take a `loss`."
    )


def sparse_batch(part):
    """Say that a batch to be split holds sparse or ragged tensors."""
    return (
        f"gradient_mode='accumulated' splits a batch into microbatches, "
        f"which is done with dense tensors only. Received: a "
        f"{type(part).__name__} in the batch. Densify it in the data set "
        "(tf.sparse.to_dense, RaggedTensor.to_tensor), or use "
        "gradient_mode='batch'."
    )


def accumulating_optimizer(optimizer):
    """Say that an optimizer accumulates gradients itself."""
    return (
        f"The optimizer {optimizer.name!r} accumulates gradients on its own "
        "(gradient_accumulation_steps="
        f"{optimizer.gradient_accumulation_steps}). Leave that to "
        "gradient_mode=Accumulated(steps=...)."
    )


def synchronized_statistics(layer, part):
    """Say that a layer takes statistics over replicas, not for one part."""
    # `synchronized=False` is no way out for single samples: the statistics
    # would still be taken over the samples of a replica.
    alternative = "" if part == "sample" else "synchronized=False, or "
    return (
        f"layer {layer.name!r} ({type(layer).__name__}) takes statistics over "
        "all replicas (synchronized=True), which cannot be done for one "
        f"{part} after the other. Use {alternative}GroupNormalization "
        "instead, or gradient_mode='batch'."
    )


def overwritten_weight(layer, variable):
    """Say that a layer's weight is overwritten with its gradient."""
    return (
        f"Layer {layer.path or layer.name!r} ({type(layer).__name__}, dtype "
        f"policy {layer.dtype_policy.name!r}) has weights that are overwritten "
        "with their gradient (overwrite_with_gradient=True, as in float8). "
        "Expected weights of which each sample has a gradient. Received: "
        f"{variable.path!r}, whose next value is found from the whole batch. "
        "Use gradient_mode='batch' on one device, which trains it as "
        "keras.Model does, or a layer that is not quantized, with "
        "dtype='mixed_bfloat16'."
    )


def blank_batches(model, op, op_type):
    """Say that one sample has made all others of its batch count as zero."""
    return (
        f"Samples of {model.name!r} had gradients that are not finite. The op "
        f"{op_type} ({op}) is differentiated for one sample after the other, "
        "and where a sample is not finite there, all samples of its batch "
        "count as zero (`nonfinite_samples` in the logs). Keep such samples "
        "out of the data, or use gradient_mode='per_sample', which leaves out "
        "this sample alone. explain(model) names such ops."
    )


def sequential_updates(replicas):
    """Say that several replicas cannot update sample by sample."""
    return (
        "updates='sample' makes one update after the other, which several "
        "replicas cannot do at the same time. Use updates='batch' under this "
        "tf.distribute strategy, or train without it. Received: "
        f"updates='sample' on {replicas} replicas"
    )


def needs_all_samples(argument, value):
    """Say that weights from a Gramian need all samples at once."""
    return (
        "An aggregation that weighs samples by the inner products of all of "
        "them needs all samples of an update at once, which microbatches, "
        "single samples and accumulated batches do not have. Use "
        "gradient_mode=Vectorized(aggregation=...) by itself, or an "
        "aggregation that looks at norms alone, such as ClippedMean. "
        f"Received: {argument}={value!r}"
    )


def gramian_over_replicas(aggregation, replicas):
    """Say that there is no Gramian of the samples of several replicas."""
    return (
        f"{aggregation!r} weighs samples by the inner products of all of "
        "them, and the gradients of samples stay on their replica. Train "
        "without this tf.distribute strategy, or use an aggregation that "
        "looks at norms alone, such as ClippedMean. Received: an update on "
        f"{replicas} replicas"
    )


def stateful_batch_size(layer, batch_size, reason):
    """Say that a layer or model is made for batches of one size."""
    subject = f"layer {layer.name!r} ({type(layer).__name__})"
    return (
        f"{subject} is stateful, made for batches of {batch_size}: it hands a "
        f"state from each batch to the next. {reason}, for which that state "
        "is not defined. Use stateful=False; gradient_mode='batch' trains it "
        "as it is."
    )


def fixed_batch_size(model, batch_size, reason):
    """Say that the inputs of a model must tell how many samples there are."""
    return (
        f"model {model.name!r} takes batches of {batch_size} only, as its "
        f"inputs say (batch_shape or batch_size). {reason}. Leave the batch "
        "size open, as keras.Input(shape) does; gradient_mode='batch' trains "
        "it as it is."
    )


def not_one_number(received):
    """Say that the loss of the batch is not a scalar."""
    return (
        f"The loss must be one number for the batch. Received: {received}. "
        "Give the loss a reduction, such as reduction='sum_over_batch_size', "
        "not None or 'none'."
    )


def unknown_loss_length(loss):
    """Say that the length of a loss's samples is not known while tracing."""
    return (
        f"The number of values of the loss {loss!r} for one sample is not "
        "known while the step is traced, since an axis of the data (the "
        "length of the sequences, say) has no fixed size there. Over several "
        "steps it must be the same in all batches, or the scale of a sample's "
        "gradient is not known before it is clipped. Pass arrays, pad the "
        "batches of a tf.data.Dataset to one length (padded_batch, or map "
        "with tf.ensure_shape), use steps=1 with larger batches, or call "
        "compile() again if an earlier fit had another length."
    )


def changed_loss_length(loss, old, new):
    """Say that a loss has another number of values for one sample."""
    return (
        f"The loss {loss!r} has {new} values for one sample, and had {old} in "
        "the batches before. Over several steps it must be the same in all "
        "batches, or the scale of a sample's gradient is not known before it "
        "is clipped. Pad the sequences to one length, use steps=1 with larger "
        "batches, or call compile() again before training on another length."
    )


def unknown_divisor(loss):
    """Say that the divisor of a loss is not known before the last step."""
    return (
        f"The loss {loss!r} is not a mean over a number of values in "
        "proportion to the number of samples, so that over several steps the "
        "scale of a sample's gradient is not known before it is clipped. Use "
        "steps=1 with larger batches, or a loss with reduction "
        "'sum_over_batch_size' on outputs without mask."
    )


SUM_OVER_STEPS = (
    "A loss given to `add_loss` is a sum over the samples of the batch, so "
    "that over several steps the scale of a sample's gradient is not known "
    "before it is clipped. Reduce it with ops.mean over all axes, or use "
    "steps=1 with larger batches."
)
