import pytest

from keras_pergrad.stalls import facts


@pytest.fixture
def two_cores(monkeypatch):
    """As many as the machine had on which the faults were recorded."""
    monkeypatch.setattr(facts, "cores", lambda: 2)
