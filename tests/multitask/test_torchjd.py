"""The weights of every aggregation, against those of TorchJD."""

import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests.multitask.matrices import MATRICES, PREFERENCE

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


AGGREGATIONS = {
    "UPGrad": kpg.aggregations.UPGrad(),
    "UPGrad, preference": kpg.aggregations.UPGrad(preference=PREFERENCE),
    "MGDA": kpg.aggregations.MGDA(),
    "MGDA, long": kpg.aggregations.MGDA(epsilon=1e-6, max_iterations=1000),
    "CAGrad": kpg.aggregations.CAGrad(0.5),
    "CAGrad, wide": kpg.aggregations.CAGrad(1.5),
    "IMTLG": kpg.aggregations.IMTLG(),
    "AlignedMTL": kpg.aggregations.AlignedMTL(),
    "AlignedMTL, median": kpg.aggregations.AlignedMTL(scale_mode="median"),
    "AlignedMTL, rmse": kpg.aggregations.AlignedMTL(scale_mode="rmse"),
    "AlignedMTL, preference": kpg.aggregations.AlignedMTL(
        preference=PREFERENCE
    ),
    "Krum": kpg.aggregations.Krum(1),
    "Krum, 3": kpg.aggregations.Krum(1, 3),
}


#: Equal rows may share their weights in any way.
NOT_UNIQUE = "CAGrad", "MGDA", "Krum"


def assert_close(found, expected, name):
    limit = 1e-5 * max(np.abs(expected).max(), 1e-9)
    np.testing.assert_allclose(found, expected, 0, limit, err_msg=name)


def _function(aggregation, xla=False):
    """Return the weights as a function, traced once for all sizes."""
    spec = tf.TensorSpec([None, None], tf.float64)
    return tf.function(
        lambda gramian: aggregation.gramian_weights(gramian),
        input_signature=[spec],
        autograph=False,
        jit_compile=xla,
    )


@pytest.mark.parametrize("xla", [False, True])
@pytest.mark.parametrize("label", [*AGGREGATIONS, "PCGrad"])
def test_weights_are_those_of_torchjd(label, xla):
    cases = 0
    function = _function(AGGREGATIONS.get(label), xla)
    for name, (rows, unique) in MATRICES.items():
        if label not in RECORDED["weights"][name]:
            continue
        if xla and name not in ("three", "equal"):
            continue  # each is compiled anew
        if label == "PCGrad":
            function = _function(InOrder(RECORDED["orders"][name]), xla)
        expected = np.array(RECORDED["weights"][name][label])
        if label.startswith("CAGrad") and name == "lengths":
            # TorchJD takes the short ones for rounding, and all weights are 0.
            assert not expected.any()
            continue
        gramian = rows @ rows.T
        found = function(gramian).numpy()
        if unique or not label.startswith(NOT_UNIQUE):
            assert_close(found, expected, name)
        if label.startswith("CAGrad") and not unique:
            # Its solver is not sure there: ours is better for the worst.
            least, theirs = ((gramian @ w).min() for w in (found, expected))
            assert least >= theirs - 1e-9
            continue
        assert_close(found @ rows, expected @ rows, name)
        cases += 1
    assert cases >= 1
