"""The list of callbacks, which ends as it was."""

import re

import keras
import numpy as np
import pytest

import keras_pergrad as kpg
from keras_pergrad.common import callback_list
from keras_pergrad.common.callback_list import CalledLast
from keras_pergrad.common.running_fit import running_fit
from tests.models.making import compiled, net

X, Y = np.ones((8, 2)), np.ones((8, 1))


class Notes(keras.callbacks.Callback):
    """Notes who is told that a batch begins."""

    def __init__(self, told, name):
        super().__init__()
        self.told, self.name = told, name

    def on_train_batch_begin(self, batch, logs=None):
        self.told.append(self.name)


class Writes(keras.callbacks.Callback):
    """Logs a figure, and prints below the bar."""

    def __init__(self, text="below"):
        super().__init__()
        self.text = text

    def on_train_begin(self, logs=None):
        self.siblings = running_fit(self.model).callback_list
        callback_list.go_before_readers(self, self.siblings)

    def on_epoch_end(self, epoch, logs=None):
        logs[self.text] = 7.5
        callback_list.print_last(self.siblings, f"says {self.text}")


class Fails(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        raise KeyboardInterrupt


def make(cls=kpg.PerGradModel):
    return compiled(net(shape=(2,), units=1, cls=cls), jit_compile=False)


def list_of(model, *callbacks):
    """A list of the user's own."""
    return keras.callbacks.CallbackList(
        callbacks,
        add_history=True,
        add_progbar=True,
        model=model,
        epochs=1,
        verbose=2,
        steps=1,
    )


@pytest.mark.parametrize("fails", [False, True])
def test_a_list_of_the_users_ends_as_it_was(fails):
    model, added = make(), Notes([], "added")

    class Adds(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            siblings = running_fit(self.model).callback_list
            siblings.callbacks.append(added)

    reads = keras.callbacks.EarlyStopping("below", mode="min")
    given = list_of(model, reads, Writes(), Adds(), *[Fails()] * fails)
    before = list(given.callbacks)
    for times in (1, 2):
        try:
            model.fit(X, Y, callbacks=given)
        except KeyboardInterrupt:
            assert fails
        assert given.callbacks == [*before, *[added] * times]
    assert fails or reads.best == 7.5


@pytest.mark.quick
def test_text_comes_below_the_bar(capsys):
    one, other = Writes("one"), Writes("other")
    history = make(keras.Model).fit(X, Y, verbose=2, callbacks=[one, other])
    assert {"loss", "one", "other"} == set(history.history)
    bar, below = capsys.readouterr().out.split("says one\n")
    assert {"loss", "one", "other"} <= set(re.findall(r"(\w+): ", bar))
    assert below == "says other\n"
    model = make()
    given = list_of(model, Writes())
    for _ in range(2):
        keras.Model.fit(model, X, Y, callbacks=given)
        assert capsys.readouterr().out.endswith("7.5000\nsays below\n")


@pytest.mark.quick
def test_text_of_a_fit_that_failed_is_not_printed_later(capsys):
    model = make()
    given = list_of(model, Writes(), Fails())
    with pytest.raises(KeyboardInterrupt):
        keras.Model.fit(model, X, Y, callbacks=given)
    given.callbacks.remove(next(c for c in given.callbacks if type(c) is Fails))
    keras.Model.fit(model, X, Y, callbacks=given)
    assert capsys.readouterr().out.count("says below") == 1


def test_text_comes_at_once_without_a_list(capsys):
    make().fit(X, Y, verbose=0, callbacks=[Writes()])
    assert capsys.readouterr().out == "says below\n"
    bar = keras.callbacks.ProgbarLogger()
    make().fit(X, Y, verbose=2, callbacks=[bar, Writes()])
    assert capsys.readouterr().out.endswith("says below\n")
    callback_list.print_last(None, "no list")
    assert capsys.readouterr().out == "no list\n"


def test_a_function_is_called_behind_all_others():
    told, model = [], make()

    class Joins(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            siblings = running_fit(self.model).callback_list
            callback_list.go_before_readers(self, siblings)
            self.is_last = callback_list.is_last(self, siblings)
            self.hook = CalledLast(siblings, lambda: told.append("last"))

        def on_train_batch_begin(self, batch, logs=None):
            self.hook.join()

    joins = [Joins(), Joins()]
    given = list_of(model, joins[0], Notes(told, "a"), joins[1])
    before = list(given.callbacks)
    given.callbacks.insert(1, CalledLast(given, None))  # of a fit that failed
    keras.Model.fit(model, X, Y, 4, callbacks=given)
    assert told == ["a", "last"] * 2
    assert [j.is_last for j in joins] == [False, True]
    assert given.callbacks == before


def test_one_comes_first_and_once():
    one, other = Notes([], "one"), Notes([], "other")
    assert callback_list.with_first(one, None) == [one]
    assert callback_list.with_first(one, other) == [one, other]
    assert callback_list.with_first(one, [other, [one]]) == [one, other]
    given = keras.callbacks.CallbackList([other, one])
    with callback_list.restored_at_end(keras.Sequential(), given):
        assert callback_list.with_first(one, given) is given
        assert callback_list.as_callback_list(given) == [one, other]
    assert given.callbacks == [other, one]
