"""Readers of the samples' gradients in the step that trains on them."""

import contextlib
import dataclasses
import weakref
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_pergrad.common.batches import split_numbers
from keras_pergrad.common.gradients import dense_gradients
from keras_pergrad.factors import SampleGradients
from keras_pergrad.factors.written_out import norm_type
from keras_pergrad.keras_internals.data.views import without_mark
from keras_pergrad.keras_internals.fit.train_function import (
    InnermostFunction,
    fresh_train_function,
    look_ahead,
)
from keras_pergrad.keras_internals.replicas import replicas
from keras_pergrad.modes.step_options import StepOptions


@dataclasses.dataclass
class StepSamples:
    """The samples of a training batch, before its update.

    n samples. They exist in the graph of the step only.

    Example: that of `StepReader`, whose `read` is given one.

    Attributes:
        model: the `PerGradModel`.
        x, y, sample_weight: the batch, as the step gets it; x has augmented
            views on its second axis, where there are any.
        y_pred: the model's outputs, with views as x has them.
        loss: the loss of the batch, regularisers included, unscaled.
        n: how many samples, a number or a scalar tensor.
        variables: the trainable variables.
        factors: for each variable the `SampleGradients` of the samples'
            contributions, unscaled, not clipped, without regularisers; None:
            the loss does not depend on it. `n` times a contribution is the
            gradient of a sample. A sample that is not finite is not blank.
            They may be `held`.
        sums: those of the contributions, where they are known; see `mean`.
    """

    model: Any
    x: Any
    y: Any
    sample_weight: Any
    y_pred: Any
    loss: Any
    n: Any
    variables: list[Any]
    factors: list[SampleGradients | None]
    sums: list[Any] | None = None

    @property
    def dtype(self) -> tf.DType:
        """float64 if a variable is, else float32."""
        return norm_type(self.variables)

    def held(self) -> "StepSamples":
        """Return the samples with `held` factors.

        Norms, mean and products share what these hold.
        """
        held = [f and f.held() for f in self.factors]
        return dataclasses.replace(self, factors=held)

    def mean(self) -> list[tf.Tensor]:
        """Return the mean gradient, one dense tensor a variable."""
        if self.sums is None:
            self.sums = [f and f.weighted_sum(None) for f in self.factors]
        return dense_gradients(self.sums, self.variables)

    def squared_norms(self) -> tf.Tensor:
        """Return ‖g_i‖² for each variable, (V, n)."""
        zeros, squares = tf.zeros([self.n], self.dtype), []
        for factor in self.factors:
            if factor is None:
                squares.append(zeros)
                continue
            factor_squares: Any = factor.squared_norms()
            factor_squares = tf.cast(factor_squares, self.dtype)
            squares.append(tf.reshape(factor_squares, [self.n]))
        return tf.cast(self.n, self.dtype) ** 2 * tf.stack(squares)

    def dots(self, directions: Sequence[Any]) -> tf.Tensor:
        """Return ⟨g_i, d⟩ over all variables, (n,).

        `directions` has a tensor of the shape of each variable, or None.
        """
        total = tf.zeros([self.n], self.dtype)
        for factor, direction in zip(self.factors, directions, strict=True):
            if factor is not None and direction is not None:
                total += tf.cast(factor.dot(direction), self.dtype)
        return tf.cast(self.n, self.dtype) * total


class StepReader:
    """Reads the samples' gradients of the steps that train, in their graph.

    Subclass it, and open it with `model.read_steps(reader)` while a model
    trains. Before each call of the train function `is_due` says whether to
    read in it; a call that is not read is the one that runs without a
    reader. In one that is, `read` makes tensors of the `StepSamples`,
    before the update, and `receive` gets their values after it. With
    `steps_per_execution` above 1 a call has several steps: all are read,
    `receive` gets the last one's. What is to be kept of each goes into
    variables of the reader's own, by `assign`, `scatter_nd_add` and so on
    in `read`.

    The gradients and the update are the same as without it. A class that
    does not define `read` raises NotImplementedError in the first step.

    Example, the inner product of each sample's gradient with their mean:

    >>> import keras, numpy as np
    >>> import keras_pergrad as kpg
    >>> class Agreement(kpg.modes.StepReader):
    ...     def read(self, samples):
    ...         return {"dots": samples.dots(samples.mean())}
    ...     def receive(self, values):
    ...         print(values["dots"].shape)
    >>> inputs = keras.Input((4,))
    >>> model = kpg.PerGradModel(inputs, keras.layers.Dense(3)(inputs))
    >>> model.compile("sgd", "mse", gradient_mode="vectorized")
    >>> with model.read_steps(Agreement()):
    ...     history = model.fit(np.ones((5, 4)), np.ones((5, 3)), verbose=0)
    (5,)
    """

    #: Whether each sample must have a number.
    needs_numbers = False
    #: Whether `checks` looks at the numbers.
    checks_numbers = False

    def is_due(self) -> bool:
        """Whether to read in the next call of the train function."""
        return True

    def checks(self, numbers: tf.Tensor | None) -> list[Any]:
        """Return ops that fail where a batch cannot be read.

        No weight changes before them. XLA drops assertions. `numbers` are
        those of the samples, (n,), where the data have them, else None.
        """
        return []

    def read(self, samples: StepSamples) -> dict[str, Any]:
        """Return tensors, or lists of them, by name; traced into the step."""
        raise NotImplementedError(f"{type(self).__name__} must define read().")

    def collect(
        self, read: dict[str, Any], numbers: tf.Tensor | None
    ) -> dict[str, Any]:
        """Return what `receive` gets of what `read` returned, in each step.

        It runs after the update. `numbers` are those of the samples, (n,),
        where the data have them, else None.
        """
        return read

    def receive(self, values: dict[str, Any]) -> None:
        """Take what `read` returned, after the update."""


def readings(model, part, y_pred, *, factors, sums=None):
    """Return what its readers make of a whole batch's factors, each a dict.

    None where nothing is read.
    """
    if not part.options.readers or not part.is_whole:
        return None
    results = []
    for reader in part.options.readers:
        samples = StepSamples(
            model=model,
            x=without_mark(part.x),
            y=part.y,
            sample_weight=part.sample_weight,
            y_pred=without_mark(y_pred),
            loss=part.loss,
            n=part.n,
            variables=list(model.trainable_variables),
            factors=factors,
            sums=sums,
        )
        values = reader.read(samples)
        results.append({k: _as_tuple(v) for k, v in values.items()})
    return tuple(results)


def _as_tuple(value):
    # Keras returns the logs as an Optional, which can have no list.
    return tuple(value) if isinstance(value, list) else value


#: Where the logs of a step have its readings, until they are taken out.
READINGS_KEY = "keras_pergrad_readings"


class StepReadings:
    """The readers that are open on one model.

    For each set of readers that is due together there is a train function, in
    which they read. It is traced by its first call. `base` is the class whose
    `train_step` gives them what was read.
    """

    def __init__(self, model, base):
        self._model, self._base = weakref.ref(model), base
        self._readers, self._functions = [], {}
        self._innermost = None

    @contextlib.contextmanager
    def opened(self, reader):
        """Have a reader read while this is open."""
        if not isinstance(reader, StepReader):
            raise TypeError(
                "`reader` expected an object of a keras_pergrad.modes."
                f"StepReader. Received: reader={reader!r}"
            )
        model = self._model()
        require_own_step(model, self._base)
        require_readable(model)
        if self._innermost is None:
            self._innermost = InnermostFunction(model, self._read_step)
        self._readers.append(reader)
        try:
            yield
        finally:
            self._readers = [r for r in self._readers if r is not reader]
            # Traced functions would keep the readers that have gone.
            self._functions = {}
            if not self._readers:
                innermost, self._innermost = self._innermost, None
                innermost.restore()

    def on_compile(self):
        """Go on reading in a model that was compiled while readers are open."""
        self._functions = {}
        if self._readers:
            require_readable(self._model())
            self._innermost = InnermostFunction(self._model(), self._read_step)

    def _read_step(self, function, iterator):
        due_readers = [r for r in self._readers if r.is_due()]
        if not due_readers:
            return function(iterator)
        model = self._model()
        iterator = _check_ahead(model, due_readers, iterator)
        original_options = model.step_options
        is_watched = original_options.is_watched
        key = is_watched, *map(id, due_readers)
        new_options = StepOptions(is_watched, tuple(due_readers))
        options, function = self._functions.get(key, (new_options, None))
        model.step_options = options
        try:
            if function is None:
                with fresh_train_function(model, anew=True) as function:
                    self._functions[key] = options, function
            logs = dict(function(iterator))
        finally:
            # If it was compiled meanwhile, the options of then stay.
            if model.step_options is options:
                model.step_options = original_options
        for reader, values in zip(
            due_readers, logs.pop(READINGS_KEY), strict=True
        ):
            reader.receive(values)
        return logs


def _check_ahead(model, readers, iterator):
    """Return an iterator whose next batches readers have checked.

    In the step XLA would drop the checks.
    """
    readers = [r for r in readers if r.checks_numbers]
    if not readers or not model.jit_compile:
        return iterator
    batches, iterator = look_ahead(model, iterator)
    for batch in batches or ():
        x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
        numbers = split_numbers(x)[1]
        for reader in readers if numbers is not None else ():
            reader.checks(numbers)
    return iterator


def require_readable(model):
    """Refuse a model whose steps have no samples' gradients to read."""
    mode = model.gradient_mode
    if not mode.can_be_read:
        raise ValueError(
            "The samples' gradients of the training batch can be read in a "
            "step that has all of them at once. Expected a model compiled "
            "with gradient_mode='vectorized' or Vectorized(...). Received: "
            f"{mode!r}. GradientVariance measures it on a probe."
        )
    if mode.aggregation is not None and mode.aggregation.counts:
        raise ValueError(
            "What is read of the samples' gradients in private training is "
            "not covered by its privacy statement. Expected a mode of "
            f"training that is not private. Received: {mode!r}"
        )
    strategy = model.distribute_strategy
    if strategy.num_replicas_in_sync > 1 or replicas.has_several_replicas():
        raise ValueError(
            "The samples' gradients of the training batch are spread over "
            f"{strategy.num_replicas_in_sync} replicas of "
            f"{type(strategy).__name__}. Expected one replica. Or measure on "
            "a probe."
        )


def require_own_step(model, base):
    """Refuse a model whose `train_step` is not that of `base`."""
    if type(model).train_step is not base.train_step:
        raise ValueError(
            "The samples' gradients of a training batch can be read in "
            f"{base.__name__}'s own train_step, which has one loss. Received: "
            f"a model of class {type(model).__name__} with a train_step of "
            "its own. GradientVariance measures it on a probe."
        )


def checks_of(readers, numbers):
    """Return what must have passed before weights change, a list of ops.

    Data without numbers are refused at once, where a reader needs them.
    """
    if numbers is None and any(r.needs_numbers for r in readers):
        raise ValueError(
            "Each sample is expected to have its number. Received: data "
            "without numbers. Arrays given to `fit` get them by themselves; "
            "in a data set or a PyDataset put them beside the inputs: "
            "SampleValues.with_numbers(x, numbers) in place of x."
        )
    return [op for reader in readers for op in reader.checks(numbers)]


def readings_of(step, mode, readers, *, numbers):
    """Return what the logs of a step have of what was read in it."""
    if step.readings is None:
        raise ValueError(
            f"{mode!r} has not let the samples' gradients be read: its step() "
            "expected to return what super().step() returned, with the "
            "`readings` in it, and its partial_sums() those of "
            "super().partial_sums(). Or set can_be_read = False in its class, "
            "and measure on a probe."
        )
    read = zip(readers, step.readings, strict=True)
    return {
        READINGS_KEY: tuple(r.collect(values, numbers) for r, values in read)
    }
