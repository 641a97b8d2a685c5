"""The installed versions, and whether they work together.

All is read from the packages' metadata; nothing is imported.
"""

import importlib.metadata
import platform
import re
import sys

from keras_pergrad.analysis.doctor.machine_findings import (
    ERROR,
    NOTE,
    OK,
    WARNING,
    Finding,
)

PACKAGES = ("tensorflow", "keras", "numpy", "tensorflow-metal")
_WHEELS = ("tensorflow", "tensorflow-cpu", "tensorflow-macos")
# tensorflow-metal → the first TensorFlow it loads with, and the first that it
# does not. Its own metadata names none, so pip lets every pair pass.
_METAL = {
    (1, 2): ((2, 18), (2, 20)),
    (1, 1): ((2, 14), (2, 18)),
    (1, 0): ((2, 13), (2, 14)),
    (0, 8): ((2, 12), (2, 13)),
}
_METAL_FIX = (
    'pip install "tensorflow>=2.18,<2.20" "tensorflow-metal==1.2.0" '
    "(Python 3.12 at most), or, to train on the CPU, "
    "pip uninstall tensorflow-metal"
)


def installed():
    """package → version or `None`; `"tensorflow"` for any of its wheels."""
    found = {}
    for package in PACKAGES:
        names = _WHEELS if package == "tensorflow" else (package,)
        versions = [_version(name) for name in names]
        found[package] = next((v for v in versions if v), None)
    return found


def _version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def numbers(version):
    """`"2.18.0rc1"` → `(2, 18, 0)`."""
    parts = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(p) for p in parts.group().split(".")) if parts else ()


def check(found, python=None, system=None):
    """Judge what `installed` returns, as a list of `Finding`."""
    python = python or sys.version_info[:2]
    system = system or (platform.system(), platform.machine())
    findings = [_python(python)]
    if found["tensorflow"] is None:
        fix = 'pip install "tensorflow>=2.18"'
        if system == ("Darwin", "arm64"):
            fix = 'pip install "keras-pergrad[metal]"'
        findings.append(
            Finding(ERROR, "TensorFlow", "it is not installed", fix)
        )
        return findings
    findings.append(_at_least("TensorFlow", found["tensorflow"], (2, 18)))
    if found["keras"] is None:
        findings.append(
            Finding(
                ERROR,
                "Keras",
                "it is not installed",
                'pip install "keras>=3.8"',
            )
        )
    else:
        findings.append(_at_least("Keras", found["keras"], (3, 8)))
    if found["numpy"] is not None:
        findings.append(Finding(OK, "NumPy", found["numpy"]))
    findings += _requirements()
    findings += _metal(found, python, system)
    return findings


def _python(python):
    shown = ".".join(map(str, python))
    if (3, 11) <= python <= (3, 13):
        return Finding(OK, "Python", shown)
    return Finding(
        ERROR,
        "Python",
        f"expected 3.11, 3.12 or 3.13. Received: {shown}",
        "make an environment with one of these",
    )


def _at_least(name, version, least):
    wanted = ".".join(map(str, least))
    if numbers(version)[:2] >= least:
        return Finding(OK, name, version)
    return Finding(
        ERROR,
        name,
        f"expected {wanted} or newer. Received: {version}",
        f'pip install --upgrade "{name.lower()}>={wanted}"',
    )


def _requirements():
    """Return what TensorFlow itself asks of NumPy, Keras and protobuf."""
    for wheel in _WHEELS:
        if _version(wheel) is not None:
            lines = importlib.metadata.requires(wheel) or []
            break
    else:
        return []
    findings = []
    for line in lines:
        match = re.match(r"(numpy|keras|protobuf|ml[-_]dtypes)\b(.*)", line)
        if not match or ";" in line:
            continue
        name, wanted = match.group(1), match.group(2).strip(" ()")
        version = _version(name)
        if version is not None and not satisfies(version, wanted):
            findings.append(
                Finding(
                    ERROR,
                    name,
                    f"TensorFlow expected {wanted}. Received: {version}",
                    f'pip install "{name}{wanted}"',
                )
            )
    return findings


def satisfies(version, wanted):
    """Whether `"2.1.3"` fits `">=1.26.0,<2.2.0"`; pre-releases count as
    their release."""
    have = numbers(version)
    for clause in filter(None, wanted.split(",")):
        match = re.match(
            r"\s*(>=|<=|==|!=|~=|>|<)\s*(\d+(?:\.\d+)*)(\.\*)?", clause
        )
        if not match:
            continue
        sign, bound = match.group(1), numbers(match.group(2))
        size = max(len(have), len(bound))
        left = have + (0,) * (size - len(have))
        right = bound + (0,) * (size - len(bound))
        prefix = left[: len(bound)] == bound
        fits = {
            ">=": left >= right,
            "<=": left <= right,
            ">": left > right,
            "<": left < right,
            "==": prefix if match.group(3) else left == right,
            "!=": not prefix if match.group(3) else left != right,
            "~=": left >= right and have[: len(bound) - 1] == bound[:-1],
        }
        if not fits[sign]:
            return False
    return True


def _metal(found, python, system):
    metal, tensorflow = found["tensorflow-metal"], found["tensorflow"]
    if metal is None:
        if system != ("Darwin", "arm64"):
            return []
        return [
            Finding(
                NOTE,
                "Metal",
                "tensorflow-metal is not installed: training uses the CPU",
                'pip install "keras-pergrad[metal]" (Python 3.12 at most)',
            )
        ]
    major, minor, *_ = (*numbers(metal), 0, 0)
    bounds = _METAL.get((major, minor))
    if bounds is None:
        return [
            Finding(
                WARNING,
                "Metal",
                f"tensorflow-metal {metal} is not known here; 1.2.0 is",
                _METAL_FIX,
            )
        ]
    pair = f"tensorflow-metal {metal} with TensorFlow {tensorflow}"
    if bounds[0] <= numbers(tensorflow)[:2] < bounds[1]:
        return [Finding(OK, "Metal", pair)]
    first, after = (".".join(map(str, bound)) for bound in bounds)
    return [
        Finding(
            ERROR,
            "Metal",
            f"{pair} does not load; it needs {first} or newer and older "
            f"than {after}. `import tensorflow` fails with such a pair",
            _METAL_FIX,
        )
    ]
