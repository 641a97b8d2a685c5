"""The installed versions, and findings on whether they work together.

All is read from the packages' metadata; nothing is imported.
"""

import dataclasses
import importlib.metadata
import os
import platform
import re

from keras_pergrad.placement import metal

OK, NOTE, WARNING, ERROR = "ok", "note", "warning", "error"
#: The first version of each that the package takes, and the first it does not.
BOUNDS = {
    "Python": ((3, 11), (3, 14)),
    "TensorFlow": ((2, 18), None),
    "Keras": ((3, 8), None),
}
PACKAGES = (
    *("tensorflow", "keras", "numpy", "pandas"),
    *(plugin.package for plugin in metal.PLUGINS.values()),
)
#: Package → the names under which it is published.
_WHEELS = {
    "tensorflow": ("tensorflow-cpu", "tensorflow-macos", "tf-nightly"),
    "keras": ("keras-nightly",),
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
    found: dict[str, str | None] = {"python": platform.python_version()}
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


def check(versions, system=None):
    """Judge what `installed` returns, as a list of `Finding`."""
    is_mac = (system or (platform.system(), platform.machine())) == metal.MAC
    findings = [_version_finding(name, versions, is_mac) for name in BOUNDS]
    if versions["tensorflow"] is None:
        return findings[:2]  # it brings Keras
    if versions["numpy"] is not None:
        findings.append(Finding(OK, "NumPy", versions["numpy"]))
    if versions["pandas"] is not None and is_mac:
        findings.append(Finding(NOTE, "pandas", *metal.PANDAS))
    return [*findings, *_metal_findings(versions, is_mac)]


def _fits(version, bounds):
    first, after = bounds
    release = numbers(version)[:2]
    return first <= release and (after is None or release < after)


def _range(bounds):
    first, after = (b and ".".join(map(str, b)) for b in bounds)
    return f"{first} or newer" + (f" and older than {after}" if after else "")


def _version_finding(name, versions, is_mac):
    version, bounds = versions[name.lower()], BOUNDS[name]
    if version is not None and _fits(version, bounds):
        return Finding(OK, name, version)
    fix = f'pip install --upgrade "{name.lower()}>={_range(bounds).split()[0]}"'
    if name == "Python":
        fix = "make an environment with one of these"
    elif version is None and name == "TensorFlow" and is_mac:
        fix = metal.APPLE.install
    message = "it is not installed"
    if version is not None:
        message = f"expected {_range(bounds)}. Received: {version}"
    return Finding(ERROR, name, message, fix=fix)


def _metal_findings(versions, is_mac):
    """Yield what is to say of plugins for Metal, if it concerns this system."""
    here = [p for p in metal.PLUGINS.values() if versions[p.package]]
    if len(here) > 1:
        yield Finding(ERROR, "Metal", *metal.BOTH)
    elif here:
        yield _plugin_finding(here[0], versions)
    elif is_mac:
        message = f"{metal.APPLE.package} is not installed: training uses the "
        fix = f"{metal.APPLE.install} (Python 3.12 at most)"
        yield Finding(NOTE, "Metal", f"{message}CPU", fix=fix)
    if metal.COMMUNITY in here and os.environ.get(metal.SYNCHRONOUS) == "0":
        message = f"{metal.SYNCHRONOUS}=0: kernels do not wait for the GPU"
        fix = f"unset {metal.SYNCHRONOUS}"
        yield Finding(ERROR, "Metal", message, fix=fix)


def _plugin_finding(plugin, versions):
    """Return what is to say of the one plugin that is installed."""
    version, tensorflow = versions[plugin.package], versions["tensorflow"]
    bounds = plugin.bounds.get(numbers(version)[:2])
    name = f"{plugin.package} {version}"
    if bounds is None:
        message = f"{name} is not known here; {plugin.version} is"
        return Finding(WARNING, "Metal", message, fix=plugin.fix)
    if not _fits(tensorflow, bounds):
        message = (
            f"{name} does not work with TensorFlow {tensorflow}, but with "
            f"{_range(bounds)}: {plugin.mismatch}"
        )
        return Finding(ERROR, "Metal", message, fix=plugin.fix)
    message = f"{name} with TensorFlow {tensorflow}"
    if plugin is metal.COMMUNITY:
        return Finding(
            WARNING, "Metal", f"{message}: {metal.RACE}", fix=metal.TEST
        )
    return Finding(OK, "Metal", message)


def check_for_metal(versions):
    """Return `Finding`s on what to install on a Mac, and what fails there.

    Each plugin also gets one on whether `versions` would work with it.
    """
    findings = []
    for plugin in metal.PLUGINS.values():
        needs = {**BOUNDS, "Python": plugin.python}
        needs["TensorFlow"] = plugin.bounds[numbers(plugin.version)[:2]]
        ranges = [f"{name} {_range(needs[name])}" for name in needs]
        message = (
            f"{plugin.release} (by {plugin.maker}) needs macOS {plugin.macos} "
            f"or newer, {', '.join(ranges)}. With another TensorFlow "
            f"{plugin.mismatch}"
        )
        findings.append(Finding(NOTE, "Metal", message, fix=plugin.install))
        unfit = [
            f"{name} {version}"
            for name, bounds in needs.items()
            if (version := versions[name.lower()])
            and not _fits(version, bounds)
        ]
        level = WARNING if unfit else OK
        message = f"does not fit: {', '.join(unfit)}" if unfit else "fits"
        findings.append(Finding(level, "what is installed here", message))
    limits = metal.BOTH, metal.NO_XLA, metal.NO_KERNELS, metal.PANDAS
    return findings + [Finding(NOTE, "Metal", *limit) for limit in limits]
