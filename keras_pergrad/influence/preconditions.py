"""Preconditions of `Influence`: arguments, losses, test samples."""

from typing import Literal

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.common.arguments import (
    function,
    number_from,
    path_text,
    require_one_of,
)
from keras_pergrad.common.data_batches import batches_of
from keras_pergrad.functions import batch_loss
from keras_pergrad.functions.data_passes import build_for_gradients
from keras_pergrad.functions.given_batch import build_for, explaining
from keras_pergrad.influence.fixed_order import FixedOrderBatches
from keras_pergrad.influence.likelihoods import NoLikelihood, likelihoods_of
from keras_pergrad.keras_internals.models.parts import (
    build_symbolically,
    compiled_loss,
    entries_of,
    require_inputs,
    require_targets,
    trace_symbolically,
)
from keras_pergrad.modes.inspection import require_compiled

Curvature = Literal["ekfac", "kfac", "exact", "projected", "none"]
CURVATURES = ("ekfac", "kfac", "exact", "projected", "none")
#: What the path of a store is.
STORE = "the directory of a store, such as 'store'"


def is_batched(x):
    """Whether data come in batches."""
    return isinstance(x, (tf.data.Dataset, keras.utils.PyDataset))


def parse_shard(shard):
    """Return a shard as (i, of), after a look at it."""
    try:
        index, count = map(int, shard)
    except (TypeError, ValueError):
        index, count = 0, 0
    if not 0 <= index < count:
        raise ValueError(
            "`shard` must be (i, of) with 0 <= i < of. Received: "
            f"shard={shard!r}"
        )
    return index, count


def check_arguments(curvature, damping, checkpoints):
    """Refuse arguments of the wrong kind or out of range."""
    require_one_of("curvature", curvature, CURVATURES)
    if damping is not None:
        number_from("damping", damping, 0, alternative=" or None")
    if curvature == "none" and damping is not None:
        raise ValueError(
            "`damping` is added to a curvature, and curvature='none' has "
            f"none. Expected damping=None. Received: damping={damping!r}"
        )
    if checkpoints is None:
        return
    is_list = isinstance(checkpoints, (list, tuple))
    if not is_list or not checkpoints:
        raise ValueError(
            "`checkpoints` must be None or a list of at least one weights "
            f"file. Received: checkpoints={checkpoints!r}"
        )
    for path in checkpoints:
        path_text("checkpoints", path, "a list of weights files")


def require_page_arguments(model, class_names, show):
    """Refuse names that are too few for the classes, and a `show` for none."""
    if show is not None:
        function("show", show, " of one sample")
    if class_names is None:
        return
    is_list = not isinstance(class_names, str) and hasattr(
        class_names, "__getitem__"
    )
    shape = getattr(model, "output_shape", None)
    classes = shape[-1] if isinstance(shape, tuple) else None
    if not is_list or (isinstance(classes, int) and len(class_names) < classes):
        raise ValueError(
            "`class_names` expected a list with the name of each of "
            f"{classes or 'the'} classes. Received: class_names={class_names!r}"
        )


def require_built(model):
    """Refuse a model without weights, or without a loss."""
    require_compiled(model)
    if not model.built:
        raise ValueError(
            f"Expected a built model, whose weights are those of the store. "
            f"Received: {model.name!r}, which has none yet: call it on a "
            "batch, or model.build(...)."
        )


def require_mean_loss(model, batch):
    """Refuse a model whose loss is no mean over samples; build it."""
    require_compiled(model)
    require_targets(model, batch)
    build_for_gradients(model, batch)
    batch_loss.require_loss(model, batch)
    for entry in entries_of(compiled_loss(model)):
        reduction = getattr(entry.loss, "reduction", None)
        if isinstance(entry.loss, keras.losses.Loss) and reduction == "sum":
            raise ValueError(
                f"Loss {entry.loss.name!r} adds up over the batch "
                "(reduction='sum'), so that a sample's gradient depends on "
                "the size of its batch. Expected a mean over the samples: "
                "compile with reduction='sum_over_batch_size'."
            )
    if batch_loss.batch_reduction(model, batch) != batch_loss.MEAN:
        raise ValueError(
            f"The loss of model {model.name!r} adds up over the batch: of a "
            "batch with every sample twice it is another one, so that a "
            "sample's gradient depends on the size of its batch. Expected a "
            "mean over the samples: ops.mean in place of ops.sum where a loss "
            "function or `add_loss` reduces the batch; or a loss function "
            "that returns one value for each sample."
        )


def require_class_numbers(model, batch, y):
    """Refuse numbers of classes for which the model has no output.

    `y`: the targets, of the batch alone or of more samples.
    """
    outputs = trace_symbolically(model, batch[0])
    try:
        likelihoods = likelihoods_of(model, outputs)
    except NoLikelihood:
        return
    # Those of several outputs are left to TensorFlow.
    if len(likelihoods) > 1 or not likelihoods[0].takes_indices:
        return
    [output], [numbers] = tf.nest.flatten(outputs), tf.nest.flatten(y)
    low, high, classes = np.min(numbers), np.max(numbers), output.shape[-1]
    if low < 0 or high >= classes:
        raise ValueError(
            f"Model {model.name!r} has {classes} outputs, one for each class. "
            f"Expected `y` from 0 to {classes - 1}. Received: from {low} to "
            f"{high}. Number the classes, y = numpy.unique(y, "
            "return_inverse=True)[1], or give the last layer as many units as "
            "there are classes."
        )


def require_validation_batch(model, batch):
    """Refuse validation data that have no loss, or one that is not finite."""
    with explaining(model, batch, "validation_data"):
        build_for(model, batch)
        if batch[1] is not None:
            require_class_numbers(model, batch, batch[1])
        has_loss = np.isfinite(batch_loss.try_loss(model, batch))
        if not has_loss and not all(map(_is_finite, tf.nest.flatten(batch))):
            raise ValueError(
                "its loss is not finite, with NaN or infinity in x, y or "
                "sample_weight. Fill them in, or leave these samples out."
            )


def _is_finite(tensor):
    is_real = tensor is not None and tensor.dtype.is_floating
    return not is_real or bool(tf.reduce_all(tf.math.is_finite(tensor)))


def make_test_batches(model, x, y, *, sample_weight):
    """Return a function from a batch size to the batches of test samples.

    A data set keeps its own batches. Where a loss divides by what a batch
    holds (its masks), each test sample is a batch of its own.
    """
    samples = batches_of(x, y, sample_weight)
    if is_batched(x):
        samples = FixedOrderBatches(samples, "x_test")
    batch = next(iter(samples))
    require_targets(model, batch)
    require_inputs(model, batch[0])
    require_class_numbers(model, batch, batch[1])
    # A model that was just compiled has not built its losses.
    build_symbolically(model, batch)
    if not batch_loss.is_mean_over_samples(model, batch):
        return lambda size: _SingleSampleBatches(samples)
    if is_batched(x):
        return lambda size: samples
    return lambda size: batches_of(x, y, sample_weight, batch_size=size)


class _SingleSampleBatches:
    """Batches of one sample each."""

    def __init__(self, batches):
        self._batches = batches

    def __iter__(self):
        for x, y, sample_weight in self._batches:
            yield from batches_of(x, y, sample_weight, batch_size=1)
