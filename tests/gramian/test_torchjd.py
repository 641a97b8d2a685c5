"""The weights of every aggregation, against those of TorchJD."""

import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests.gramian.matrices import MATRICES, PREFERENCE

RECORDED = json.loads(
    pathlib.Path(__file__).with_name("torchjd.json").read_text()
)


class InOrder(kpg.PCGrad):
    """In orders that were recorded."""

    def __init__(self, orders):
        super().__init__()
        self._orders = orders

    def order(self, m):
        return tf.constant(self._orders)


AGGREGATIONS = {
    "UPGrad": kpg.UPGrad(),
    "UPGrad, preference": kpg.UPGrad(preference=PREFERENCE),
    "MGDA": kpg.MGDA(),
    "MGDA, long": kpg.MGDA(epsilon=1e-6, max_iterations=1000),
    "CAGrad": kpg.CAGrad(0.5),
    "CAGrad, wide": kpg.CAGrad(1.5),
    "IMTLG": kpg.IMTLG(),
    "AlignedMTL": kpg.AlignedMTL(),
    "AlignedMTL, median": kpg.AlignedMTL(scale_mode="median"),
    "AlignedMTL, rmse": kpg.AlignedMTL(scale_mode="rmse"),
    "AlignedMTL, preference": kpg.AlignedMTL(preference=PREFERENCE),
    "Krum": kpg.Krum(1),
    "Krum, 3": kpg.Krum(1, 3),
}


def _weights(aggregation, gramian, xla=False):
    function = tf.function(
        aggregation.gramian_weights, autograph=False, jit_compile=xla
    )
    return function(tf.constant(gramian)).numpy()


@pytest.mark.parametrize("xla", [False, True])
@pytest.mark.parametrize("label", [*AGGREGATIONS, "PCGrad"])
def test_weights_are_those_of_torchjd(label, xla):
    cases = 0
    for name, (rows, unique) in MATRICES.items():
        if label not in RECORDED["weights"][name]:
            continue
        if xla and name not in ("three", "classes", "equal"):
            continue  # each is compiled anew
        aggregation = AGGREGATIONS.get(label)
        if aggregation is None:
            aggregation = InOrder(RECORDED["orders"][name])
        expected = np.array(RECORDED["weights"][name][label])
        found = _weights(aggregation, rows @ rows.T, xla)
        if unique or not label.startswith("CAGrad"):
            limit = 1e-5 * np.abs(expected).max()
            np.testing.assert_allclose(found, expected, 0, limit, err_msg=name)
        direction = expected @ rows
        np.testing.assert_allclose(
            found @ rows, direction, 0, 1e-5 * np.abs(direction).max()
        )
        cases += 1
    assert cases >= 1
