"""The installed versions, and findings on whether they work together.

All is read from the packages' metadata; nothing is imported.
"""

import dataclasses
import importlib.metadata
import platform
import re
import sys

OK, NOTE, WARNING, ERROR = "ok", "note", "warning", "error"
METAL_FIX = (
    'pip install "tensorflow>=2.18,<2.20" "tensorflow-metal==1.2.0" '
    "(Python 3.12 at most), or, to train on the CPU, "
    "pip uninstall tensorflow-metal"
)
PACKAGES = ("tensorflow", "keras", "numpy", "tensorflow-metal")
_WHEELS = ("tensorflow", "tensorflow-cpu", "tensorflow-macos")
# tensorflow-metal → the first TensorFlow it loads with, and the first that it
# does not. Its own metadata names none, so pip lets every pair pass.
_METAL: dict[tuple[int, ...], tuple] = {
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
    """package → version or `None`; `"tensorflow"` for any of its wheels."""
    versions = {package: _version(package) for package in PACKAGES}
    of_wheels = filter(None, map(_version, _WHEELS))
    return {**versions, "tensorflow": next(of_wheels, None)}


def _version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def numbers(version):
    """`"2.18.0rc1"` → `(2, 18, 0)`."""
    parts = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(p) for p in parts.group().split(".")) if parts else ()


def check(versions, python=None, system=None):
    """Judge what `installed` returns, as a list of `Finding`."""
    python = python or sys.version_info[:2]
    system = system or (platform.system(), platform.machine())
    findings = [_python(python)]
    if versions["tensorflow"] is None:
        fix = 'pip install "tensorflow>=2.18"'
        if system == ("Darwin", "arm64"):
            fix = 'pip install "keras-pergrad[metal]"'
        absent = Finding(ERROR, "TensorFlow", "it is not installed", fix)
        return [*findings, absent]
    findings.append(_at_least("TensorFlow", versions["tensorflow"], (2, 18)))
    findings.append(_at_least("Keras", versions["keras"], (3, 8)))
    if versions["numpy"] is not None:
        findings.append(Finding(OK, "NumPy", versions["numpy"]))
    return [*findings, *_metal(versions, system)]


def _python(python):
    shown = ".".join(map(str, python))
    if (3, 11) <= python <= (3, 13):
        return Finding(OK, "Python", shown)
    said = f"expected 3.11, 3.12 or 3.13. Received: {shown}"
    fix = "make an environment with one of these"
    return Finding(ERROR, "Python", said, fix)


def _at_least(name, version, least):
    wanted = f'"{name.lower()}>={".".join(map(str, least))}"'
    if version is None:
        fix = f"pip install {wanted}"
        return Finding(ERROR, name, "it is not installed", fix)
    if numbers(version)[:2] >= least:
        return Finding(OK, name, version)
    shown = ".".join(map(str, least))
    said = f"expected {shown} or newer. Received: {version}"
    return Finding(ERROR, name, said, f"pip install --upgrade {wanted}")


def _metal(versions, system):
    """Yield what is to say of tensorflow-metal, if it concerns this system."""
    metal, tensorflow = versions["tensorflow-metal"], versions["tensorflow"]
    if metal is None:
        said = "tensorflow-metal is not installed: training uses the CPU"
        fix = 'pip install "keras-pergrad[metal]" (Python 3.12 at most)'
        if system == ("Darwin", "arm64"):
            yield Finding(NOTE, "Metal", said, fix)
        return
    bounds = _METAL.get(numbers(metal)[:2])
    if bounds is None:
        said = f"tensorflow-metal {metal} is not known here; 1.2.0 is"
        yield Finding(WARNING, "Metal", said, METAL_FIX)
        return
    said = f"tensorflow-metal {metal} with TensorFlow {tensorflow}"
    if bounds[0] <= numbers(tensorflow)[:2] < bounds[1]:
        yield Finding(OK, "Metal", said)
        return
    first, after = (".".join(map(str, bound)) for bound in bounds)
    said += (
        f" does not load; it needs {first} or newer and older than {after}. "
        "`import tensorflow` fails with such a pair"
    )
    yield Finding(ERROR, "Metal", said, METAL_FIX)
