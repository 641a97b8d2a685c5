"""The base of all gradient modes."""

import collections.abc
import dataclasses

import keras
import tensorflow as tf

from keras_pergrad import statistics
from keras_pergrad.aggregation import is_finite, of_samples
from keras_pergrad.common.registry import Configured, Registry
from keras_pergrad.keras_internals import replicas
from keras_pergrad.keras_internals.model_parts import takes_training
from keras_pergrad.modes.logs import STATISTICS


@dataclasses.dataclass
class Step:
    """What a mode found for one batch.

    Attributes:
        loss: the scalar loss of the batch, unscaled, regularisers included;
            None where the mode has tracked it itself.
        y_pred: the model's output for the batch; None where the mode has
            updated the metrics itself.
        gradients: one per trainable variable (None: no gradient), as the
            optimizer's `apply` expects them; None where the mode has called
            the optimizer itself, or no update is due yet.
        statistics: scalars to log, by name.
        whole: under a distribution strategy, whether loss, gradients and
            statistics cover the samples of all replicas, and are equal on
            each. False: gradients and loss are as in Keras; the optimizer and
            the metrics add them up over the replicas.

    Example:

    >>> import keras
    >>> import tensorflow as tf
    >>> import keras_pergrad as kpg
    >>> model = kpg.PerGradModel.from_model(
    ...     keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    ... )
    >>> model.compile("sgd", "mse", gradient_mode="vectorized")
    >>> x, y = tf.ones((4, 3)), tf.ones((4, 1))
    >>> model.fit(x, y, verbose=0).epoch
    [0]
    >>> step = model.gradient_mode.step(model, x, y, None)
    >>> [g.shape.as_list() for g in step.gradients], step.loss.shape.rank
    ([[3, 1], [1]], 0)
    """

    loss: tf.Tensor | None
    y_pred: object
    gradients: list | None
    statistics: dict = dataclasses.field(default_factory=dict)
    whole: bool = False


@dataclasses.dataclass
class PartOfBatch:
    """What a mode must know about a batch when it sees only a part.

    Attributes:
        loss: a function of the model's outputs and the list of `add_loss`
            terms; it returns the part's share in the whole batch's loss,
            without regularisers and loss scale.
        n: the number of samples in the whole batch.
        y, sample_weight: the part's targets and weights.
        added_weights: for each `add_loss` term, the factor of one sample's
            term in that of the whole batch.
    """

    loss: collections.abc.Callable
    n: tf.Tensor
    added_weights: list
    y: object
    sample_weight: object


class GradientMode(Configured):
    """How a `PerGradModel` turns a batch into gradients.

    Subclass it, define `step`, and register the class with
    `register_gradient_mode` to use it by name in `compile`.

    Gradients have the shapes of the trainable variables; a class that does not
    define `step` raises NotImplementedError in the first step. The example of
    `register_gradient_mode` is a whole mode.

    Example:

    >>> import keras_pergrad as kpg
    >>> class Ascent(kpg.Batch):
    ...     changes_gradients = True
    ...
    ...     def step(self, model, x, y, sample_weight):
    ...         step = super().step(model, x, y, sample_weight)
    ...         gradients = step.gradients
    ...         step.gradients = [g if g is None else -g for g in gradients]
    ...         return step
    >>> isinstance(Ascent(), kpg.GradientMode)
    True
    """

    #: Whether every sample's gradient is looked at on its own.
    per_sample = False

    #: What makes one gradient of the samples', if they are looked at.
    aggregation = None

    #: Whether statistics can be had beside the gradients, which stay the same.
    can_be_watched = False

    #: Whether `weighted_sum` looks at ops, which only a graph shows.
    needs_graph = False

    #: Whether a callback wants them while it watches. Set on a copy of the
    #: mode that belongs to one model, never on the user's own.
    is_watched = False

    #: Whether its gradients are meant to be others than the mean over the
    #: samples, or than its aggregation gives: nothing can check them then.
    changes_gradients = False

    #: Whether `step` may call the optimizer itself, and give no gradients.
    updates_by_itself = False

    def step(self, model, x, y, sample_weight):
        """Find the gradients of one batch.

        Args:
            model: the compiled `PerGradModel`.
            x, y, sample_weight: the batch, as `keras.Model.train_step`
                unpacks it.

        Returns:
            A `Step`.
        """
        raise NotImplementedError(f"{type(self).__name__} must define step().")

    def make_state(self):
        """Return the state that the mode keeps for a compiled model, or None.

        It becomes the model's `gradient_state` until compile() is called
        again. A state that is a `KerasSaveable` is saved with the model's
        weights.
        """
        return None

    def begin_fit(self, model):
        """Do what is due before the first batch of a `fit`.

        The call comes before any callback's `on_train_begin`, so that
        `BackupAndRestore` restores what this has reset.
        """

    def end_epoch(self, model):
        """Do what is due after an epoch's last batch; `fit` calls it.

        The call comes before validation and before any callback's
        `on_epoch_end`.
        """

    def build(self, model):
        """Create the mode's variables, once the model is built."""

    @property
    def log_metrics(self):
        """What `step` puts into `statistics`: name to metric class."""
        return {}

    @classmethod
    def from_config(cls, config):
        """Return a mode made from what `get_config` returns."""
        return cls(**config)


modes = Registry("gradient mode", GradientMode)
"""The registered modes by name, a `Registry`."""


def register_gradient_mode(name):
    """Register a `GradientMode` subclass under `name`; a class decorator.

    Args:
        name: what `gradient_mode=` and saved models call it.

    Raises:
        TypeError: the class is no `GradientMode`.
        ValueError: the name is taken by another class.

    A mode that changes another mode's gradients gets them as the optimizer's
    `apply` expects them: with weight regularisers, times the scale of a
    `LossScaleOptimizer`, and None for a variable without a gradient; of a mode
    that calls the optimizer itself it gets None for all of them. What is not
    finite must stay so, or the optimizer does not see that the scale was too
    large. Where `Step.whole` is false under several replicas, the optimizer
    adds their gradients up: refuse a change there that is not linear.

    Example, gradient centralization (Yong et al., arXiv 2004.01461):

    >>> import tensorflow as tf
    >>> import keras_pergrad as kpg
    >>> @kpg.register_gradient_mode("centralized")
    ... class Centralized(kpg.Vectorized):
    ...     changes_gradients = True
    ...
    ...     def step(self, model, x, y, sample_weight):
    ...         step = super().step(model, x, y, sample_weight)
    ...         step.gradients = [centred(g) for g in step.gradients]
    ...         return step
    >>> def centred(gradient):
    ...     if gradient is None or len(gradient.shape) < 2:
    ...         return gradient
    ...     axes = list(range(len(gradient.shape) - 1))
    ...     return gradient - tf.reduce_mean(gradient, axes, keepdims=True)
    """
    return modes.register(name)


def call_model(model, x, training=True):
    """Return `model(x)`, called as in Keras's own steps."""
    if takes_training(model):
        return model(x, training=training)
    return model(x)


def training_inside(model, training):
    """Return the value of `training` for the layers in `call_model`."""
    return training if takes_training(model) else None


def loss_scale(optimizer):
    """Return the factor by which the optimizer scales the loss, or None."""
    if optimizer is None:
        return None
    wide = keras.config.floatx() == "float64"
    one = tf.ones([], "float64" if wide else "float32")
    scaled = optimizer.scale_loss(one)
    return None if scaled is one else scaled


def with_penalties(gradients, penalties):
    """Return aggregated gradients plus those of the weight regularisers."""
    result = []
    for gradient, penalty in zip(gradients, penalties, strict=True):
        if penalty is None:
            result.append(gradient)
        elif gradient is None:
            result.append(penalty)
        else:
            result.append(tf.convert_to_tensor(gradient) + penalty)
    return result


def observed(aggregation, norms, state):
    """Pass the norms of a batch to an aggregation; return its statistics."""
    aggregation.observe(norms, state)
    return aggregation.statistics(norms)


def finished(aggregation, gradients, n, state=None):
    """Return what `aggregation.finish` returns, the same on all replicas."""
    result = aggregation.finish(gradients, n, state)
    # Each replica draws its own noise.
    return result if result is gradients else replicas.of_the_first(result)


def scaled(gradients, scale):
    """Return the gradients times the loss scale, as the optimizer expects."""
    if scale is None:
        return gradients
    return [
        None if g is None else tf.convert_to_tensor(g) * tf.cast(scale, g.dtype)
        for g in gradients
    ]


def overflow_to_infinity(gradients, finite, scale):
    """Pass an overflow on to the optimizer, which then lowers the scale."""
    overflow = tf.logical_and(tf.logical_not(tf.reduce_all(finite)), scale > 1)
    return [
        None
        if g is None
        else tf.where(
            overflow,
            tf.constant(float("inf"), g.dtype),
            tf.convert_to_tensor(g),
        )
        for g in gradients
    ]


def gives_statistics(mode):
    """Whether the user or a callback wants a mode's statistics."""
    return mode.with_statistics or mode.is_watched


def log_metrics(mode):
    """Return what a mode with `aggregation`, and maybe statistics, logs."""
    found = dict(mode.aggregation.log_metrics)
    return {**found, **STATISTICS} if gives_statistics(mode) else found


def spread(norms, squared_sums, n):
    """Return the statistics of a batch, over the samples with finite gradients.

    Args:
        norms: of the per-sample gradients, (n,) or (n, groups).
        squared_sums: for each variable ‖Σ_i c_i‖² of its contributions, in
            which samples that are not finite are blank.
        n: the number of samples.
    """
    norms = of_samples(norms)
    finite = is_finite(norms)
    count = tf.reduce_sum(tf.cast(finite, norms.dtype))
    squares = tf.where(finite, tf.square(norms), tf.zeros([], norms.dtype))
    mean = tf.add_n([tf.cast(s, norms.dtype) for s in squared_sums])
    # A contribution is the gradient over n.
    mean *= tf.square(tf.cast(n, norms.dtype) / count)
    return statistics.of_batch(squares, mean, count)
