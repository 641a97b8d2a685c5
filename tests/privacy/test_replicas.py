"""Replicas each draw their own part; noise is added once."""

import pytest

from tests.keras_internals.distribution.cluster import Cluster, run_alone

MODULE = "tests.privacy.replicas"
pytestmark = pytest.mark.slow


def check_sums(sums):
    # Noise of 1e-3 of the clip, and rounding.
    assert sums["error"] < 0.02 * sums["size"]
    assert sums["updates"] == 4
    assert sums["epsilon"] == pytest.approx(sums["alone"])
    assert len(set(sums["drawn"])) > 1


def check(found):
    check_sums(found["sums"])
    # Noise of each replica's own would be 1.41.
    assert 0.85 < found["noise"] < 1.15


def test_mirrored():
    mirrored = run_alone(MODULE, mirrored="CPU")
    check(mirrored)
    check_sums(mirrored["views"])
    assert "multiples of 2, the number of replicas" in mirrored["refusal"]
    # The order is another one for each number of replicas.
    assert mirrored["resumed"] == [4, 4]
    # Of 16 steps of 1e-4: the last digit of a weight is 5e-4 of a step.
    assert mirrored["correlated"] < 2e-3


def test_workers():
    with Cluster(MODULE, 2, mirrored=None) as cluster:
        workers = cluster.results()
    for found in workers:
        check(found)
    assert workers[0] == workers[1]
