"""Trackers that fail: named once, and the training goes on."""

import errno
import os

import numpy as np
import pytest

import keras_pergrad as kpg
from tests.trackers.fits import Kept, X, Y, fitted, make


class Failing(Kept):
    """Fails in one of its methods, from its second call on."""

    def __init__(self, place, calls=1):
        super().__init__()
        self.place, self.left = place, calls

    def _called(self, name):
        super()._called(name)
        if name == self.place:
            self.left -= 1
            if self.left < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("place", ["begin", "write", "end"])
def test_one_that_fails_is_named_once(place, capsys):
    failing = Failing(place, calls=place == "write")
    other = Kept()
    watch, model = fitted([failing, other])
    (message,) = watch.messages
    assert (
        f"the tracker Failing failed in `{place}`, with OSError: [Errno 28] "
        "No space left on device. It gets no more readings"
    ) in message
    assert capsys.readouterr().out.count("Failing") == 1
    assert failing.calls[-1] == "end"
    assert failing.calls.count("write") == {"begin": 0, "write": 2}.get(
        place, len(watch.steps)
    )
    assert [r.step for r in other.readings] == watch.steps
    alone = make()
    alone.fit(X, Y, batch_size=8, epochs=2, verbose=0, shuffle=False)
    for mine, expected in zip(model.get_weights(), alone.get_weights()):
        np.testing.assert_array_equal(mine, expected)


def test_it_is_told_of_the_next_fit():
    failing = Failing("write", calls=0)
    watch, model = fitted(failing)
    failing.place = None
    model.fit(X, Y, verbose=0, callbacks=[watch])
    assert [r.step for r in failing.readings] == watch.steps


@pytest.mark.parametrize("wrong", ["logs", [1], kpg.trackers.TensorBoard])
def test_other_things_are_refused(wrong):
    with pytest.raises(ValueError, match="`trackers` expected trackers such"):
        kpg.callbacks.GradientVariance(trackers=wrong)


def test_tags_are_of_a_run_or_of_trackers():
    kept = Kept()
    kpg.callbacks.GradientVariance(trackers=kept, tags={"a": 1}, run_name="b")
    with pytest.raises(ValueError, match="or to `trackers`"):
        kpg.callbacks.GradientVariance(tags={"a": 1})
