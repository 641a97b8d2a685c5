"""Several batches make one update: that of their union."""

import numpy as np
import pytest

import keras_pergrad as kpg
from tests.marks import few
from tests.modes.big_batch import (
    CASES,
    EXECUTION,
    SIZES,
    assert_same,
    ours,
    plain,
)

# One of each kind: compiling takes seconds.
FEW = ("masked-mean_with_sample_weight-weighted", "outputs-mixed", "added")
RUNS = [(n, e) for n in CASES for e in EXECUTION if e == "graph" or n in FEW]
for done_elsewhere in (
    ("outputs-mixed", "xla"),
    ("mean", "graph"),
    ("function", "graph"),
    ("masked-sum-plain", "graph"),
):
    RUNS.remove(done_elsewhere)
QUICK = (
    ("masked-mean_with_sample_weight-weighted", "graph"),
    ("sum-plain", "graph"),
    ("outputs-mixed", "eager"),
)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(("name", "execution"), few(RUNS, QUICK, RUNS[::2]))
def test_equals_the_big_batch(name, execution):
    # 4 + 4 + 2 = 10 twice, and a tail of 3; microbatches of 3, 1 and 2.
    mode = kpg.Accumulated(steps=3, microbatch_size=3)
    weights, history = ours(name, mode, sizes=SIZES, **EXECUTION[execution])
    right, right_history = plain(name, "graph")
    assert_same((weights, {}), (right, {}))
    for key in set(history) - {"loss", "score_loss", "picture_loss"}:
        np.testing.assert_allclose(history[key], right_history[key])
