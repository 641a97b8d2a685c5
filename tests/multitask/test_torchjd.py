"""The weights of every aggregation, against those of TorchJD."""

import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests.multitask.matrices import MATRICES, PREFERENCE, traced

RECORDED = json.loads(
    pathlib.Path(__file__).with_name("torchjd.json").read_text()
)


class InOrder(kpg.aggregations.PCGrad):
    """In orders that were recorded."""

    def __init__(self, orders):
        super().__init__()
        self._orders = orders

    def order(self, m):
        return tf.constant(self._orders)


of = kpg.aggregations
AGGREGATIONS = {
    "UPGrad": of.UPGrad(),
    "UPGrad, preference": of.UPGrad(preference=PREFERENCE),
    "MGDA": of.MGDA(),
    "MGDA, long": of.MGDA(epsilon=1e-6, max_iterations=1000),
    "CAGrad": of.CAGrad(0.5),
    "CAGrad, wide": of.CAGrad(1.5),
    "IMTLG": of.IMTLG(),
    "AlignedMTL": of.AlignedMTL(),
    "AlignedMTL, median": of.AlignedMTL(scale_mode="median"),
    "AlignedMTL, rmse": of.AlignedMTL(scale_mode="rmse"),
    "AlignedMTL, preference": of.AlignedMTL(preference=PREFERENCE),
    "Krum": of.Krum(1),
    "Krum, 3": of.Krum(1, 3),
}


#: Equal rows may share their weights in any way.
NOT_UNIQUE = "CAGrad", "MGDA", "Krum"


def assert_close(found, expected, name, *, tolerance):
    limit = tolerance * max(np.abs(expected).max(), 1e-9)
    np.testing.assert_allclose(found, expected, 0, limit, err_msg=name)


@pytest.mark.parametrize(
    "xla", [pytest.param(False, marks=pytest.mark.quick), True]
)
@pytest.mark.parametrize("label", [*AGGREGATIONS, "PCGrad"])
def test_weights_are_those_of_torchjd(label, xla):
    # XLA's eigenvalues, and CAGrad's search, end at a tolerance of their own.
    tolerance = 1e-5 if xla or label.startswith("CAGrad") else 1e-8
    cases = 0
    if label != "PCGrad":
        function = traced(AGGREGATIONS[label], xla=xla)
    for name, (rows, unique) in MATRICES.items():
        if label not in RECORDED["weights"][name]:
            continue
        if xla and name not in ("three", "equal"):
            continue  # each is compiled anew
        if label == "PCGrad":
            function = traced(InOrder(RECORDED["orders"][name]), xla=xla)
        expected = np.array(RECORDED["weights"][name][label])
        if label.startswith("CAGrad") and name == "lengths":
            # TorchJD takes the short ones for rounding, and all weights are 0.
            assert not expected.any()
            continue
        gramian = rows @ rows.T
        found = function(gramian).numpy()
        if unique or not label.startswith(NOT_UNIQUE):
            assert_close(found, expected, name, tolerance=tolerance)
        if label.startswith("CAGrad") and not unique:
            # Its solver is not sure there: ours is better for the worst.
            least, theirs = ((gramian @ w).min() for w in (found, expected))
            assert least >= theirs - 1e-9
            continue
        assert_close(found @ rows, expected @ rows, name, tolerance=tolerance)
        cases += 1
    assert cases >= 1
