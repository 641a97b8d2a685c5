import signal

import pytest

from keras_pergrad.doctor.failures import explain
from keras_pergrad.doctor.findings import without_paths


@pytest.mark.parametrize(
    ("output", "explanation", "fix"),
    [
        (
            "NotFoundError: dlopen(/Users/ann/v/tensorflow-plugins/"
            "libmetal_plugin.dylib, 0x0006): Library not loaded: "
            "@rpath/_pywrap_tensorflow_internal.so",
            "TensorFlow 2.20 and later have renamed",
            "<2.20",
        ),
        (
            "NotFoundError: dlopen(/Users/ann/v/tensorflow-plugins/"
            "libmetal_plugin.dylib, 0x0006): Symbol not found: __ZN10tenso",
            "does not fit this TensorFlow",
            "tensorflow-metal==1.2.0",
        ),
        (
            "ImportError: numpy.core.multiarray failed to import",
            "this NumPy does not fit",
            "force-reinstall",
        ),
        (
            "ModuleNotFoundError: No module named 'tensorflow'",
            "not installed",
            "pip install",
        ),
        (
            "Check failed: INTERNAL: platform is already registered with "
            'name: "METAL"',
            "loaded twice",
            "TF_PLUGGABLE_DEVICE_LIBRARY_PATH",
        ),
    ],
)
def test_known_failures_are_explained(output, explanation, fix):
    why, what, said = explain(output, 1)
    assert explanation in why
    assert fix in what
    assert "/Users" not in said


def test_signals_are_explained():
    assert "instructions" in explain("", -signal.SIGILL)[0]
    assert "crashed" in explain("", -signal.SIGSEGV)[0]
    assert "code 7" in explain("something", 7)[0]


def test_paths_are_cut_and_their_ends_kept():
    text = "in '/Users/ann/site-packages/tf/lib.so' and C:\\Users\\ann\\x.dll"
    assert without_paths(text) == "in '.../lib.so' and ...\\x.dll"
    assert without_paths("~/private/model.py:3") == ".../model.py:3"
    assert without_paths("2.3/4 of @rpath/lib.so") == "2.3/4 of @rpath/lib.so"
