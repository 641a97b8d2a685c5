"""MirroredStrategy on two devices gives what one device gives."""

import json
import subprocess
import sys

import pytest

from tests.keras_internals.distribution import mirrored
from tests.keras_internals.distribution.cluster import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def results():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", mirrored.__name__],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", mirrored.CHECKS)
def test_mirrored(results, name):
    assert results[name] is None, results[name]
