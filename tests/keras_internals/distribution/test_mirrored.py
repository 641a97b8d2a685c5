"""MirroredStrategy on two devices gives what one device gives."""

import pytest

from tests.keras_internals.distribution import mirrored
from tests.keras_internals.distribution.cluster import run_alone

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def results():
    return run_alone(mirrored.__name__)


@pytest.mark.parametrize("name", mirrored.CHECKS)
def test_mirrored(results, name):
    assert results[name] is None, results[name]
