import gc
import pathlib

import keras
import pytest
import tensorflow as tf

from keras_pergrad.aggregations.aggregation import aggregations
from keras_pergrad.modes.base import gradient_modes
from keras_pergrad.uses.layer_rules import registry
from tests import tiers
from tests.marks import is_cpu_only

_HERE = pathlib.Path(__file__).parent


def pytest_addoption(parser):
    parser.addoption(
        "--tier",
        choices=["all", *tiers.BUDGETS, "weekly"],
        default="all",
        help="all tests, or those of a tier: see tests/tiers.py",
    )
    parser.addoption("--prices", help="a file for the price of each test")


def pytest_configure(config):
    if config.getoption("--tier") != "all":
        config.pluginmanager.register(tiers.Tier(config.getoption("--tier")))
    if config.getoption("--prices"):
        config.pluginmanager.register(tiers.Meter(config.getoption("--prices")))


def pytest_collection_modifyitems(items):
    """Skip what the machine has not: a GPU, or no GPU."""
    there = bool(tf.config.list_physical_devices("GPU"))
    cpu_only = pytest.mark.skip(reason="it needs no GPU")
    gpu = pytest.mark.skip(reason="it needs a GPU")
    for item in items:
        if item.path.is_relative_to(_HERE) and is_cpu_only(
            item.path.relative_to(_HERE).as_posix()
        ):
            item.add_marker("cpu_only")
        if there and item.get_closest_marker("cpu_only"):
            item.add_marker(cpu_only)
        if not there and item.get_closest_marker("gpu"):
            item.add_marker(gpu)


@pytest.fixture(autouse=True)
def _all_digits():
    """Products of float32 with all digits, which the oracle's limits expect.

    A test of TensorFloat-32 switches it on.
    """
    switch = tf.config.experimental.enable_tensor_float_32_execution
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    switch(False)
    yield
    switch(before)


@pytest.fixture
def ten_bits():
    """Products as a GPU makes them by default."""
    tf.config.experimental.enable_tensor_float_32_execution(True)


@pytest.fixture(autouse=True)
def _fresh_keras():
    """The same seed, names, float type and policy for every test."""
    # Collecting all garbage each time would take as long as the tests do.
    keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(7)
    floatx, policy = keras.config.floatx(), keras.config.dtype_policy()
    yield
    keras.config.set_floatx(floatx)
    keras.config.set_dtype_policy(policy)


@pytest.fixture(autouse=True)
def _fresh_registries(monkeypatch):
    """What a test registers is unknown to the next."""
    for owner, name in (
        (gradient_modes, "_classes"),
        (aggregations, "_classes"),
        (registry, "_RULES"),
    ):
        monkeypatch.setattr(owner, name, dict(getattr(owner, name)))


@pytest.fixture(autouse=True, scope="session")
def _rare_collections():
    """Garbage is looked for less often: to trace makes objects by thousands.

    A seventh of the processor time of a test goes into it otherwise.
    """
    gc.freeze()
    gc.set_threshold(50_000)


@pytest.fixture(autouse=True, scope="module")
def _garbage_of_one_file():
    """What a file's tests leave behind is not looked through again.

    TensorFlow keeps the graph of every model that was trained. Late in a run
    a single search for garbage goes over all of them, for up to a minute.
    """
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture
def float64():
    """Everything in double precision, for comparisons at 1e-10."""
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
