"""This machine: accelerators, libraries, free memory, and whole files."""

import dataclasses
import os
import pathlib
import re
import sys
import tempfile
from collections.abc import Iterable

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.common.names import did_you_mean


@dataclasses.dataclass(frozen=True)
class Device:
    """An accelerator; its platform is "Metal", "CUDA" or the plugin's name."""

    name: str
    type: str
    platform: str

    @property
    def is_metal(self):
        """Whether it is driven by a Metal plugin."""
        return self.platform == "Metal"


def short_name(device):
    """Cut `'/job:localhost/replica:0/task:0/device:GPU:0'` to `'GPU:0'`."""
    match = re.search(r"device:([A-Za-z_]+:\d+)", device)
    if match:
        return match.group(1).upper()
    return device.strip("/").upper()


def platform_of(physical):
    """Return the platform that drives a physical device."""
    if physical.device_type == "METAL":
        return "Metal"
    details = tf.config.experimental.get_device_details(physical)
    # A pluggable device shows its platform as the device name; CUDA shows
    # the card's name and a compute capability.
    name = details.get("device_name", "")
    if name == "METAL":
        return "Metal"
    if "compute_capability" in details or tf.test.is_built_with_cuda():
        return "CUDA"
    return name or physical.device_type


def accelerators():
    """List every visible device that is not a CPU, as `Device`."""
    devices = []
    platforms = {
        physical.device_type: platform_of(physical)
        for physical in tf.config.list_physical_devices()
        if physical.device_type != "CPU"
    }
    for logical in tf.config.list_logical_devices():
        if logical.device_type in platforms:
            name = short_name(logical.name)
            platform = platforms[logical.device_type]
            devices.append(Device(name, logical.device_type, platform))
    return devices


def requested_devices(devices):
    """Return the names of the requested devices; None: all accelerators."""
    present = [device.name for device in accelerators()]
    if devices is None:
        return present
    requested = [devices] if isinstance(devices, str) else devices
    available = ["CPU:0", *present]
    if (
        not isinstance(requested, Iterable)
        or not all(isinstance(name, str) for name in requested)
        or not list(requested)
    ):
        raise TypeError(
            f"`devices` expected a list of names from: {', '.join(available)}. "
            f"Received: devices={devices!r}"
        )
    names = [
        short_name(d) if "device:" in d else d.strip("/").upper()
        for d in requested
    ]
    missing = [name for name in names if name not in available]
    if missing:
        raise ValueError(
            f"`devices` expected names from: {', '.join(available)}. Received: "
            f"{', '.join(missing)}, which TensorFlow does not list."
            f"{did_you_mean(missing[0], available)}"
        )
    return names


def library_versions():
    """Return name → version of the libraries that compute gradients."""
    packages = tf, keras, np, sys.modules["keras_pergrad"]
    return {package.__name__: package.__version__ for package in packages}


# (limit, usage) of the memory of a container, in version 2 and 1 of cgroups.
_CGROUP_FILES = (
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)


def free_bytes():
    """Return how many bytes are free, within the limit of a container."""
    # Systems other than Linux do not say how much is free: half of the memory
    # is assumed, or None is returned if even that is not known.
    sizes = [_available_memory(), *map(_container_memory, *zip(*_CGROUP_FILES))]
    known_sizes = [size for size in sizes if size is not None]
    if known_sizes:
        return min(known_sizes)
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, OSError, ValueError):
        return None


def resident_bytes():
    """Return the resident memory of this process, or None if not known."""
    try:
        pages = pathlib.Path("/proc/self/statm").read_text().split()[1]
    except OSError:
        return None
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _available_memory():
    try:
        text = pathlib.Path("/proc/meminfo").read_text()
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith("MemAvailable:"):
            return 1024 * int(line.split()[1])
    return None


def _container_memory(limit_file, usage_file):
    folder = pathlib.Path("/sys/fs/cgroup")
    try:
        limit = int((folder / limit_file).read_text())
        return max(0, limit - int((folder / usage_file).read_text()))
    except (OSError, ValueError):  # there is none, or its limit is "max"
        return None


def as_text(size):
    """Return a number of bytes as in "1.2 GB"."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            break
        size /= 1000
    return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"


def write_atomically(path, write):
    """Write a file beside its place and move it: nobody sees half of it."""
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        with open(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
