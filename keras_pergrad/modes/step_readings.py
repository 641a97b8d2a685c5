"""The readers of a model's steps: which are due, and what they get."""

import contextlib
import copy
import weakref

import keras

from keras_pergrad.common.numbered import parted
from keras_pergrad.keras_internals import replicas
from keras_pergrad.keras_internals.train_function import (
    Innermost,
    look_ahead,
    made,
)

#: Where the logs of a step have its readings, until they are taken out.
KEY = "keras_pergrad_readings"


class StepReadings:
    """The readers that are open on one model.

    For each set of readers that is due together there is a train function, in
    which they read. It is traced by its first call. `base` is the class whose
    `train_step` gives them what was read.
    """

    def __init__(self, model, base):
        self._model, self._base = weakref.ref(model), base
        self._readers, self._functions = [], []
        self._place = None

    @contextlib.contextmanager
    def opened(self, reader):
        """Have a reader read while this is open."""
        model = self._model()
        require_own_step(model, self._base)
        require_readable(model)
        if self._place is None:
            self._place = Innermost(model, self._step)
        self._readers.append(reader)
        try:
            yield
        finally:
            self._readers = [r for r in self._readers if r is not reader]
            self._functions = []
            if not self._readers:
                place, self._place = self._place, None
                place.restore()

    def compiled(self):
        """Go on reading in a model that was compiled while readers are open."""
        self._functions = []
        if self._readers:
            require_readable(self._model())
            self._place = Innermost(self._model(), self._step)

    def _step(self, function, iterator):
        due = [r for r in self._readers if r.is_due()]
        if not due:
            return function(iterator)
        model = self._model()
        iterator = _checked_ahead(model, due, iterator)
        before = model.gradient_mode
        mode, function = self._function(model, before, due)
        model._gradient_mode = mode
        try:
            if function is None:
                with made(model, anew=True) as function:
                    self._functions.append((before, mode, function))
            logs = dict(function(iterator))
        finally:
            if model._gradient_mode is mode:
                model._gradient_mode = before
        for reader, values in zip(due, logs.pop(KEY), strict=True):
            reader.receive(values)
        return logs

    def _function(self, model, before, due):
        """Return the mode with these readers, and its function or None."""
        for known, mode, function in self._functions:
            same = len(mode.readers) == len(due) and all(
                a is b for a, b in zip(mode.readers, due)
            )
            if known is before and same:
                return mode, function
        # A copy: several models may have been given this mode.
        mode = copy.copy(before)
        mode.readers, mode.traced = tuple(due), {}
        return mode, None


def _checked_ahead(model, readers, iterator):
    """Return an iterator whose next batches readers have checked.

    In the step XLA would drop the checks.
    """
    readers = [r for r in readers if r.checks_numbers]
    if not readers or not model.jit_compile:
        return iterator
    batches, iterator = look_ahead(model, iterator)
    for batch in batches or ():
        x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
        numbers = parted(x)[1]
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
    if strategy.num_replicas_in_sync > 1 or replicas.several():
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


def checks_of(mode, numbers):
    """Return what must have passed before weights change, a list of ops.

    Data without numbers are refused at once, where a reader needs them.
    """
    if numbers is None and any(r.needs_numbers for r in mode.readers):
        raise ValueError(
            "Each sample is expected to have its number. Received: data "
            "without numbers. Arrays given to `fit` get them by themselves; "
            "in a data set or a PyDataset put them beside the inputs: "
            "SampleValues.with_numbers(x, numbers) in place of x."
        )
    return [op for reader in mode.readers for op in reader.checks(numbers)]


def readings_of(step, mode, numbers=None):
    """Return what the logs of a step have of its readings."""
    if step.readings is None:
        raise ValueError(
            f"{mode!r} has not let the samples' gradients be read: its step() "
            "expected to return what super().step() returned, with the "
            "`readings` in it, and its partial_sums() those of "
            "super().partial_sums(). Or set can_be_read = False in its class, "
            "and measure on a probe."
        )
    read = zip(mode.readers, step.readings, strict=True)
    return {KEY: tuple(r.collect(values, numbers) for r, values in read)}
