"""MirroredStrategy on two devices gives what one device gives."""

import pytest

from tests.keras_internals.distribution import mirrored
from tests.keras_internals.distribution.cluster import run_alone
from tests.marks import few

CHECKS = list(mirrored.CHECKS)


@pytest.fixture(scope="module")
def results(request):
    """Those that were selected, in one process."""
    chosen = [
        item.callspec.params["name"]
        for item in request.session.items
        if item.path == request.path
    ]
    return run_alone(mirrored.__name__, *chosen)


@pytest.mark.parametrize("name", few(CHECKS, (), CHECKS[::2]))
def test_mirrored(results, name):
    assert results[name] is None, results[name]
