import keras
import pytest


@pytest.fixture(autouse=True)
def _fresh_keras():
    """The same seed, names, float type and policy for every test."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(7)
    floatx, policy = keras.config.floatx(), keras.config.dtype_policy()
    yield
    keras.config.set_floatx(floatx)
    keras.config.set_dtype_policy(policy)


@pytest.fixture
def float64():
    """Everything in double precision, for comparisons at 1e-10."""
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
