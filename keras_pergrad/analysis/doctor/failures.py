"""Reasons for a failed `import tensorflow`, read from its error."""

import re
import signal

from keras_pergrad.analysis.doctor.machine_findings import (
    METAL_FIX,
    without_paths,
)

# Pattern → (explanation, fix); the first that matches counts.
_KNOWN = (
    (
        r"platform is already registered with name",
        "a device plugin was loaded twice, or two plugins share a name",
        "keep one of them: look into site-packages/tensorflow-plugins and "
        "at TF_PLUGGABLE_DEVICE_LIBRARY_PATH",
    ),
    (
        r"Library not loaded: @rpath/_pywrap_tensorflow_internal",
        "tensorflow-metal 1.2.0 looks for a library that TensorFlow 2.20 "
        "and later have renamed",
        METAL_FIX,
    ),
    (
        r"libmetal_plugin|tensorflow-plugins",
        "tensorflow-metal does not fit this TensorFlow: it is loaded inside "
        "`import tensorflow`, which fails with it",
        METAL_FIX,
    ),
    (
        r"_TF_AssignUpdateVariable|_TF_AllocateOutput",
        "a plugin built for another TensorFlow",
        METAL_FIX,
    ),
    (
        r"_ARRAY_API not found|numpy\.core\.multiarray failed"
        r"|compiled using NumPy 1\.x|numpy\.dtype size changed",
        "this NumPy does not fit this TensorFlow",
        "pip install --force-reinstall tensorflow, which brings a NumPy "
        "that fits",
    ),
    (
        r"google\.protobuf|Detected incompatible Protobuf",
        "this protobuf does not fit this TensorFlow",
        "pip install --force-reinstall tensorflow",
    ),
    (
        r"No module named 'tensorflow'",
        "TensorFlow is not installed in this environment",
        'pip install "tensorflow>=2.18"',
    ),
    (
        r"No module named '(?:keras|numpy|packaging)",
        "a package that TensorFlow needs is missing",
        "pip install --force-reinstall tensorflow",
    ),
)
_SIGNALS = {
    signal.SIGILL: (
        "the processor lacks instructions that this TensorFlow was built "
        "with (AVX, or an Intel wheel under Rosetta)",
        "use a wheel for this processor; on a Mac a Python for arm64",
    ),
    signal.SIGABRT: (
        "TensorFlow aborted while it loaded",
        "the lines above say why; `pip check` may name a wrong package",
    ),
    signal.SIGSEGV: (
        "TensorFlow crashed while it loaded",
        "pip install --force-reinstall tensorflow; remove device plugins",
    ),
}


def explain(output, code):
    """Return why an import failed, the fix, and the telling line."""
    for pattern, why, fix in _KNOWN:
        if re.search(pattern, output):
            return why, fix, _line(output, pattern)
    if code < 0 and -code in _SIGNALS:
        why, fix = _SIGNALS[signal.Signals(-code)]
        return why, fix, _line(output, "")
    return (
        f"`import tensorflow` ended with code {code}",
        "pip install --force-reinstall tensorflow; if it stays, report it "
        "with the output of --json",
        _line(output, ""),
    )


def _line(output, pattern):
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = [line for line in lines if pattern and re.search(pattern, line)]
    chosen = (telling or lines or [""])[-1]
    return without_paths(chosen)[:300]
