"""The train function: wrapped, exchanged for one call, and put back."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.keras_internals.fit.train_function import (
    OneCallHook,
    TrainFunctionWrapper,
    Variant,
    fetches_per_call,
    fresh_train_function,
    look_ahead,
)
from tests.models.making import compiled, net

X, Y = np.ones((8, 2)), np.ones((8, 1))


def make(cls=keras.Model, **settings):
    model = net(shape=(2,), units=1, cls=cls)
    compiled(model, jit_compile=False, **settings)
    model.make_train_function()
    return model


def data(batch=4):
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(batch)


def counted(calls):
    def step(function, iterator):
        calls.append(function)
        return function(iterator)

    return step


def test_a_wrapper_takes_the_steps_of_its_fit():
    model, calls = make(), []
    function = model.train_function
    wrapped = TrainFunctionWrapper(model, counted(calls))
    steps = iter(data())
    wrapped.batch_begins()
    assert "loss" in model.train_function(steps)
    assert (calls, model.train_function) == ([function], wrapped)
    # The next step was not announced: it is one of another fit.
    assert "loss" in model.train_function(steps)
    assert (calls, model.train_function) == ([function], function)


def test_around_it_another_wrapper_stays():
    model, calls = make(), []
    wrapped = TrainFunctionWrapper(model, counted(calls))
    model.train_function = outer = lambda iterator: wrapped(iterator)
    wrapped.restore()
    wrapped.batch_begins()
    assert "loss" in model.train_function(iter(data()))
    assert (calls, model.train_function) == ([], outer)
    # When that one has gone, this one goes, too.
    model.train_function = wrapped
    model.train_function(iter(data()))
    assert (calls, model.train_function) == ([], wrapped.function)


@pytest.mark.parametrize(
    ("error", "ends"), [(KeyboardInterrupt, True), (StopIteration, False)]
)
def test_a_step_that_raises_ends_it(error, ends):
    model, left = make(), []

    def step(function, iterator):
        raise error

    wrapped = TrainFunctionWrapper(
        model, step, lambda: left.append(wrapped.restore())
    )
    wrapped.batch_begins()
    with pytest.raises(error):
        model.train_function(iter(data()))
    assert len(left) == ends
    assert (model.train_function is wrapped) != ends


def test_one_call_is_exchanged_at_a_time():
    model, calls = make(), []
    function = model.train_function

    def call(slot, function, iterator, model):
        assert model.train_function is function
        calls.append(slot)
        return function(iterator)

    once, other = (OneCallHook("train_function", call) for _ in range(2))
    steps = iter(data(2))
    for _ in range(2):
        once.arm(model)
        other.arm(model)  # It is taken already.
        assert model.train_function is once
        model.train_function(steps)
        assert model.train_function is function
    once.arm(model)
    once.restore()
    model.train_function(steps)
    assert calls == ["train_function"] * 2
    assert (once.function, other.function) == (None, None)


def test_a_variant_is_made_once():
    model, variant = make(), Variant()
    own, seconds = model.train_function, []
    for _ in range(2):
        variant.use(model)
        seconds.append(model.train_function)
        variant.put_back(model)
        assert model.train_function is own
    assert seconds[0] is seconds[1] is not own
    # A user's wrapper stays, and then Keras makes a new function.
    model.train_function = users = lambda iterator: own(iterator)
    variant.use(model)
    assert model.train_function is users
    variant.put_back(model)
    assert model.train_function is None


def test_one_that_is_made_for_a_while():
    model = make()
    own = model.train_function
    with fresh_train_function(model, anew=False) as function:
        assert function is own

    def fail():
        with fresh_train_function(model, anew=True) as function:
            assert function is model.train_function is not own
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert model.train_function is own


@pytest.mark.parametrize("steps", [1, 3])
def test_batches_are_looked_at_before_they_are_taken(steps):
    model = make(steps_per_execution=steps)
    batches, iterator = look_ahead(model, iter(data()))
    assert len(batches) == min(steps, 2)
    assert fetches_per_call(model) == steps + 2
    with_all = model.train_function(iterator)
    assert "loss" in with_all
    assert model.optimizer.iterations == min(steps, 2)
    assert look_ahead(model, [(X, Y)]) == (None, [(X, Y)])


def test_a_watch_leaves_a_wrapper_of_the_users():
    model = make(kpg.PerGradModel, gradient_mode="vectorized")
    own = model.train_function
    model.train_function = users = lambda iterator: own(iterator)
    with model.watch_gradients():
        assert model.train_function is users
    assert model.train_function is None
