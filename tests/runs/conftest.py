import pytest


@pytest.fixture(autouse=True)
def _fresh_keras():
    """Records and their comparison are NumPy: Keras has nothing to forget."""
