"""A model's train and test functions, and what takes their place.

Keras calls `model.train_function(iterator)` for each step of a `fit`, or for
`steps_per_execution` at once, and keeps it until `compile`. Nothing else in
this package reads, wraps, exchanges or restores it. What a user's callback has
put around it stays.
"""

import contextlib
import functools

import keras
import tensorflow as tf

SLOTS = TRAIN, TEST = "train_function", "test_function"
_CLOSURES = 5  # around each other
#: From this version on Keras fetches the batch itself and gives it to the
#: compiled step, unless it makes several steps per execution.
_FETCHES_ITSELF = (3, 16)
_END_OF_DATA = StopIteration, tf.errors.OutOfRangeError
# Keras's tracking `__setattr__` costs more, and so does a function of Python.
_set_function = object.__setattr__


def fetches_per_call(model):
    """Return how many batches a call of the train function fetches at most."""
    # One for each step, rounded up to whole turns of the unrolled loop, and one
    # more that finds the end of the data.
    steps = int(getattr(model, "steps_per_execution", 1))
    return steps + int(getattr(model, "unrolled_steps_per_execution", 1)) + 1


def batch_spec(model, iterator):
    """Return the types of the batch that a model's first step is traced for.

    None: the exact ones of the batch itself.
    """
    version = tuple(map(int, keras.__version__.split(".")[:2]))
    if version >= _FETCHES_ITSELF and int(model.steps_per_execution) == 1:
        return None
    return iterator.element_spec


def compiled_functions(function):
    """List the `tf.function`s in a train function."""
    # Keras's own is a closure around these, and wrappers hold it in turn.
    found, seen, pending = [], set(), [(function, 0)]
    while pending:
        candidate, depth = pending.pop()
        if id(candidate) in seen or isinstance(candidate, keras.Layer):
            continue
        seen.add(id(candidate))
        if hasattr(candidate, "experimental_get_tracing_count"):
            found.append(candidate)
        elif depth < _CLOSURES:
            pending += [(v, depth + 1) for v in _held_by(candidate)]
    return found


def trace_count(functions):
    """Return how often `tf.function`s have been traced."""
    count = 0
    for function in functions:  # twice a step: half as long as a generator
        count += function.experimental_get_tracing_count()
    return count


def _held_by(function):
    """Yield what a function, a method or a callable object may call."""
    function = getattr(function, "__func__", function)
    values = [*getattr(function, "__dict__", {}).values()]
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # not filled yet
            values.append(cell.cell_contents)
    return [value for value in values if callable(value)]


def look_ahead(model, iterator):
    """Return the batches of the next call, and an iterator from them on.

    The batches are None where they are split over replicas.
    """
    if not isinstance(iterator, tf.data.Iterator):
        return None, iterator
    return peek_batches(iterator, model.steps_per_execution)


def peek_batches(iterator, steps):
    """Take the batches of one call; return them and an iterator over them."""
    # The new iterator has the element spec of the old one, so that a train
    # function traced for the old one is not traced again.
    batches = []
    for _ in range(steps):
        try:
            batches.append(next(iterator))
        except _END_OF_DATA:
            break
    if not batches:
        return batches, iterator
    spec = iterator.element_spec
    datasets = [
        tf.data.Dataset.from_tensors(batch).map(_shape_relaxer(spec))
        for batch in batches
    ]
    dataset = functools.reduce(tf.data.Dataset.concatenate, datasets)
    return batches, iter(dataset)  # type: ignore[call-overload]


def _shape_relaxer(spec):
    """Return a function that drops the sizes that the spec leaves open."""

    def relax(*batch):
        batch = batch if isinstance(spec, tuple) else batch[0]
        return tf.nest.map_structure(_relax_shape, spec, batch)

    return relax


def _relax_shape(spec, tensor):
    if not isinstance(spec, tf.TensorSpec):
        return tensor
    # This op passes the value on and makes its static shape less exact.
    return tf.raw_ops.PlaceholderWithDefault(input=tensor, shape=spec.shape)


class _Wrapper:
    """A substitute for a model's train function, put below another wrapper.

    It calls `step(function, iterator)` until `restore`.
    """

    def __init__(self, model, step, function, *, below):
        self._model, self._step, self.function = model, step, function
        _set_below(model, below, self)

    def __call__(self, iterator):
        if self._step is None:
            return self.function(iterator)
        return self._step(self.function, iterator)

    def restore(self):
        """Put the function back, or only pass calls on from now on."""
        # It cannot be put back while a user's wrapper is around this one.
        self._step = None
        above, function = None, self._model.train_function
        while isinstance(function, _Wrapper) and function is not self:
            above, function = function, function.function
        if function is self:
            _set_below(self._model, above, self.function)


class TrainFunctionWrapper(_Wrapper):
    """A wrapper of a model's train function, for the length of one `fit`.

    Keras tells no callback that a step raised, so `on_abandoned()` is called
    then. It is also called if a failed `fit` has left the wrapper behind:
    `batch_begins` was not called.
    """

    def __init__(self, model, step, on_abandoned=None):
        super().__init__(model, step, model.train_function, below=None)
        self._on_abandoned = on_abandoned or self.restore
        self._batch_began = False

    def batch_begins(self):
        """Take note that the next step belongs to this `fit`."""
        self._batch_began = True

    def __call__(self, iterator):
        batch_began, self._batch_began = self._batch_began, False
        if self._step is not None and not batch_began:
            self._on_abandoned()
        if self._step is None:  # another wrapper held this, or still does
            self.restore()
            return self.function(iterator)
        try:
            return self._step(self.function, iterator)
        except _END_OF_DATA:
            raise
        except BaseException:
            self._on_abandoned()
            raise


class OneCallHook:
    """A substitute for a model's function, for one call each time it is armed.

    The function is put back as the call begins. So between two calls the model
    is as it was, whatever happens there (an exception in another callback,
    Ctrl-C). The call goes to `call(slot, function, iterator, model)`.
    """

    # Only while it is armed: a lasting reference would keep the model alive.
    model = function = None

    def __init__(self, slot, call):
        self._slot, self._call = slot, call

    def arm(self, model):
        """Take the next call of a function that is not armed already."""
        function = getattr(model, self._slot)
        if type(function) is not OneCallHook:
            self.model, self.function = model, function
            _set_function(model, self._slot, self)

    def restore(self):
        """Put the function back if armed; return it with its model."""
        function, model = self.function, self.model
        self.function = self.model = None
        if model is not None and getattr(model, self._slot) is self:
            _set_function(model, self._slot, function)
        return function, model

    def __call__(self, iterator):
        function, model = self.restore()
        return self._call(self._slot, function, iterator, model)


class InnermostFunction(_Wrapper):
    """A substitute for Keras's own train function, below all wrappers."""

    def __init__(self, model, step):
        model.make_train_function()
        wrapper, function = _innermost(model)
        if not _is_keras_own(function):
            raise ValueError(
                "Something has put a function of its own in the place of "
                "model.train_function before this `fit` began, so that no "
                "other can be made for single steps. Expected Keras's own. "
                f"Received: {function!r}. Put a callback that wraps it "
                "after this one."
            )
        super().__init__(model, step, function, below=wrapper)


class Variant:
    """A second train function, made once, for another state of the model.

    It takes the place of Keras's own. A function that a callback has wrapped
    stays, and if it is new it is traced in that state.
    """

    _original = _variant = None

    def use(self, model):
        """Let the model, which is in that state, train by this function."""
        model.make_train_function()
        wrapper, original = _innermost(model)
        self._original = original if _is_keras_own(original) else None
        if self._original is None:
            return
        if self._variant is None:
            with fresh_train_function(model, anew=True) as self._variant:
                pass
        _set_below(model, wrapper, self._variant)

    def put_back(self, model):
        """Put back Keras's own; if either was wrapped, have Keras remake it."""
        wrapper, function = _innermost(model)
        if function is self._variant:
            _set_below(model, wrapper, self._original)
        else:
            _set_function(model, TRAIN, None)
        self._original = None


class IteratorTaker(keras.Model):
    """A model whose `evaluate` gives its iterator to a function, once."""

    def __init__(self, take):
        super().__init__()
        self._take = take
        self.compile()

    def make_test_function(self, force=False):
        def test_function(iterator):
            self._take(iterator)
            self.stop_evaluating = True
            return {}

        self.test_function = test_function


@contextlib.contextmanager
def fresh_train_function(model, anew):
    """Yield a model's train function, or a new one; put the old one back."""
    original = model.train_function
    try:
        model.make_train_function(force=anew)
        yield model.train_function
    finally:
        _set_function(model, TRAIN, original)


def _innermost(model):
    """Return the train function below our wrappers, and the lowest of these."""
    wrapper, function = None, model.train_function
    while isinstance(function, _Wrapper):
        wrapper, function = function, function.function
    return wrapper, function


def _is_keras_own(function):
    return getattr(function, "__module__", "").startswith("keras.")


def _set_below(model, wrapper, function):
    """Put a train function below a wrapper; None: below none."""
    if wrapper is None:
        _set_function(model, TRAIN, function)
    else:
        wrapper.function = function
