"""Trackers that fail: named once, and the training goes on."""

import errno
import os
import sys

import pytest

import keras_pergrad as kpg
from tests.models.making import assert_equal, trained
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
    alone = trained(make(), X, Y, batch_size=8, epochs=2)
    assert_equal(model, alone)


def test_it_is_told_of_the_next_fit():
    failing = Failing("write", calls=0)
    watch, model = fitted(failing, tags={"a": 1}, run_name="b")
    failing.place = None
    model.fit(X, Y, verbose=0, callbacks=[watch])
    assert [r.step for r in failing.readings] == watch.steps
    for run in failing.runs:
        assert (run.tags, run.run) == ({"a": 1}, "b")


@pytest.mark.parametrize(
    ("library", "tracker"),
    [("mlflow", kpg.trackers.MLflow), ("wandb", kpg.trackers.WandB)],
)
def test_the_extra_is_named(library, tracker, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    expected = rf"'keras-pergrad\[{library}\]'"
    with pytest.raises(ImportError, match=expected):
        tracker("digits")
