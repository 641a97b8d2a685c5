"""The installed versions, and findings on whether they work together.

All is read from the packages' metadata; nothing is imported.
"""

import dataclasses
import importlib.metadata
import os
import platform
import re
import sys

OK, NOTE, WARNING, ERROR = "ok", "note", "warning", "error"
METAL_FIX = (
    'pip install "tensorflow>=2.18,<2.20" "tensorflow-metal==1.2.0" '
    "(Python 3.12 at most), or, to train on the CPU, "
    "pip uninstall tensorflow-metal"
)
COMMUNITY = "tensorflow-metal-plugin"
COMMUNITY_FIX = (
    'pip install "tensorflow==2.21.*", then, once that is done, '
    "pip install --force-reinstall --no-deps tensorflow-metal-plugin==0.4.1"
)
PACKAGES = (
    *("tensorflow", "keras", "numpy", "pandas"),
    *("tensorflow-metal", COMMUNITY),
)
#: Package → the names under which it is published.
_WHEELS = {
    "tensorflow": ("tensorflow-cpu", "tensorflow-macos", "tf-nightly"),
    "keras": ("keras-nightly",),
}
# tensorflow-metal → the first TensorFlow it loads with, and the first that it
# does not. Its own metadata names none, so pip lets every pair pass.
_METAL_BOUNDS: dict[tuple[int, ...], tuple] = {
    (1, 2): ((2, 18), (2, 20)),
    (1, 1): ((2, 14), (2, 18)),
    (1, 0): ((2, 13), (2, 14)),
    (0, 8): ((2, 12), (2, 13)),
}


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of the doctor's screen.

    Attributes:
        level: `"ok"`, `"note"`, `"warning"` or `"error"`.
        subject: what it is about.
        message: what was found.
        fix: what to do, or `""`.
    """

    level: str
    subject: str
    message: str
    fix: str = ""


def installed():
    """Return package → version or `None`, whichever its wheel's name is."""
    found = {}
    for package in PACKAGES:
        names = package, *_WHEELS.get(package, ())
        found[package] = next(filter(None, map(_version, names)), None)
    return found


def _version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def numbers(version):
    """Turn `"2.18.0rc1"` into `(2, 18, 0)`."""
    parts = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(p) for p in parts.group().split(".")) if parts else ()


def check(versions, python=None, system=None):
    """Judge what `installed` returns, as a list of `Finding`."""
    python = python or sys.version_info[:2]
    system = system or (platform.system(), platform.machine())
    findings = [_python_finding(python)]
    if versions["tensorflow"] is None:
        fix = 'pip install "tensorflow>=2.18"'
        if system == ("Darwin", "arm64"):
            fix = 'pip install "keras-pergrad[metal]"'
        absent = Finding(ERROR, "TensorFlow", "it is not installed", fix)
        return [*findings, absent]
    findings.append(
        _minimum_finding("TensorFlow", versions["tensorflow"], (2, 18))
    )
    findings.append(_minimum_finding("Keras", versions["keras"], (3, 8)))
    if versions["numpy"] is not None:
        findings.append(Finding(OK, "NumPy", versions["numpy"]))
    if versions.get("pandas") is not None and system == ("Darwin", "arm64"):
        message = (
            "on Apple silicon the first `fit` hangs in a program that imports "
            "pandas before TensorFlow (keras-team/keras#23083)"
        )
        fix = "import tensorflow, keras or keras_pergrad first"
        findings.append(Finding(NOTE, "pandas", message, fix))
    return [*findings, *_metal_findings(versions, system)]


def _python_finding(python):
    version = ".".join(map(str, python))
    if (3, 11) <= python <= (3, 13):
        return Finding(OK, "Python", version)
    message = f"expected 3.11, 3.12 or 3.13. Received: {version}"
    fix = "make an environment with one of these"
    return Finding(ERROR, "Python", message, fix)


def _minimum_finding(name, version, least):
    requirement = f'"{name.lower()}>={".".join(map(str, least))}"'
    if version is None:
        fix = f"pip install {requirement}"
        return Finding(ERROR, name, "it is not installed", fix)
    if numbers(version)[:2] >= least:
        return Finding(OK, name, version)
    least_text = ".".join(map(str, least))
    message = f"expected {least_text} or newer. Received: {version}"
    return Finding(ERROR, name, message, f"pip install --upgrade {requirement}")


def _community_findings(plugin, tensorflow):
    """Yield what is to say of the community's plugin."""
    message = f"{COMMUNITY} {plugin} with TensorFlow {tensorflow}"
    if numbers(plugin)[:2] != (0, 4):
        message = f"{COMMUNITY} {plugin} is not known here; 0.4.1 is"
        yield Finding(WARNING, "Metal", message, COMMUNITY_FIX)
    elif numbers(tensorflow)[:2] != (2, 21):
        message += " offers no GPU: it needs TensorFlow 2.21"
        yield Finding(ERROR, "Metal", message, COMMUNITY_FIX)
    else:
        message += (
            " (not Apple's): TensorFlow writes variables from the host beside "
            "the GPU's work, and weights became NaN until each kernel waited "
            "for the GPU"
        )
        fix = (
            "keras_pergrad.check_gradients on your model, and the same fit "
            "twice from one seed: both must give the same numbers"
        )
        yield Finding(WARNING, "Metal", message, fix)
    if os.environ.get("TF_METAL_SYNCHRONOUS") == "0":
        message = "TF_METAL_SYNCHRONOUS=0: kernels do not wait for the GPU"
        fix = "unset TF_METAL_SYNCHRONOUS"
        yield Finding(ERROR, "Metal", message, fix)


def _metal_findings(versions, system):
    """Yield what is to say of plugins for Metal, if it concerns this system."""
    metal, tensorflow = versions["tensorflow-metal"], versions["tensorflow"]
    community = versions[COMMUNITY]
    if metal is not None and community is not None:
        message = (
            f"tensorflow-metal and {COMMUNITY} are both installed: both "
            "register the platform METAL, and `import tensorflow` aborts"
        )
        fix = f"pip uninstall tensorflow-metal, or pip uninstall {COMMUNITY}"
        yield Finding(ERROR, "Metal", message, fix)
        return
    if community is not None:
        yield from _community_findings(community, tensorflow)
        return
    if metal is None:
        message = "tensorflow-metal is not installed: training uses the CPU"
        fix = 'pip install "keras-pergrad[metal]" (Python 3.12 at most)'
        if system == ("Darwin", "arm64"):
            yield Finding(NOTE, "Metal", message, fix)
        return
    bounds = _METAL_BOUNDS.get(numbers(metal)[:2])
    if bounds is None:
        message = f"tensorflow-metal {metal} is not known here; 1.2.0 is"
        yield Finding(WARNING, "Metal", message, METAL_FIX)
        return
    message = f"tensorflow-metal {metal} with TensorFlow {tensorflow}"
    if bounds[0] <= numbers(tensorflow)[:2] < bounds[1]:
        yield Finding(OK, "Metal", message)
        return
    first, after = (".".join(map(str, bound)) for bound in bounds)
    message += (
        f" does not load; it needs {first} or newer and older than {after}. "
        "`import tensorflow` fails with such a pair"
    )
    yield Finding(ERROR, "Metal", message, METAL_FIX)
