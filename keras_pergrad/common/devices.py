"""The accelerators that TensorFlow sees, and their platforms."""

import dataclasses
import re

import tensorflow as tf


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
    kinds = {
        physical.device_type: platform_of(physical)
        for physical in tf.config.list_physical_devices()
        if physical.device_type != "CPU"
    }
    for logical in tf.config.list_logical_devices():
        if logical.device_type in kinds:
            name = short_name(logical.name)
            platform = kinds[logical.device_type]
            devices.append(Device(name, logical.device_type, platform))
    return devices


def chosen(devices):
    """Return the names of the devices asked for; None: of each accelerator."""
    present = [device.name for device in accelerators()]
    if devices is None:
        return present
    wanted = [devices] if isinstance(devices, str) else list(devices)
    names = [
        short_name(d) if "device:" in d else d.strip("/").upper()
        for d in wanted
    ]
    missing = [name for name in names if name not in (*present, "CPU:0")]
    if missing:
        there = ", ".join(["CPU:0", *present])
        raise ValueError(
            f"`devices` expected names from: {there}. Received: "
            f"{', '.join(missing)}, which TensorFlow does not list."
        )
    return names
