"""The installed versions, and whether they work together.

All is read from the packages' metadata; nothing is imported.
"""

import importlib.metadata
import importlib.util
import platform
import re
import sys

from keras_pergrad.analysis.doctor.machine_findings import (
    ERROR,
    METAL_FIX,
    NOTE,
    OK,
    WARNING,
    Finding,
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
    return [*findings, *_requirements(), *_metal(versions, system)]


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


def _requirements():
    """Return what TensorFlow itself asks of NumPy, Keras and protobuf."""
    wheel = next((w for w in _WHEELS if _version(w) is not None), None)
    lines = (importlib.metadata.requires(wheel) if wheel else None) or ()
    if lines and importlib.util.find_spec("packaging") is None:
        said = "it is not installed, and TensorFlow and Keras need it"
        return [Finding(ERROR, "packaging", said, "pip install packaging")]
    findings = []
    for line in lines:
        match = re.match(r"(numpy|keras|protobuf|ml[-_]dtypes)\b(.*)", line)
        if not match or ";" in line:
            continue
        name, wanted = match.group(1), match.group(2).strip(" ()")
        version = _version(name)
        if version is not None and not satisfies(version, wanted):
            said = f"TensorFlow expected {wanted}. Received: {version}"
            fix = f'pip install "{name}{wanted}"'
            findings.append(Finding(ERROR, name, said, fix))
    return findings


def satisfies(version, wanted):
    """Whether `"2.1.3rc1"`, which counts as 2.1.3, fits `">=1.26,<2.2"`."""
    # Keras and TensorFlow bring it; without them there is nothing to ask.
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

    return SpecifierSet(wanted).contains(Version(version).base_version)


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
