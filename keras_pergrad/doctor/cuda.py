"""NVIDIA cards: what TensorFlow's wheel has kernels and libraries for."""

import ctypes
import pathlib
import re
import sysconfig

from keras_pergrad.doctor.versions import ERROR, OK, WARNING, Finding

_DRIVER = pathlib.Path("/proc/driver/nvidia/version")
# What TensorFlow loads when it looks for a GPU, by CUDA's first number.
_LIBRARIES = {
    "12": (
        "libcudart.so.12",
        "libcublas.so.12",
        "libcublasLt.so.12",
        "libcufft.so.11",
        "libcusolver.so.11",
        "libcusparse.so.12",
    ),
}
_INSTALL_FIX = 'pip install "tensorflow[and-cuda]", which brings CUDA and cuDNN'


def facts():
    """Return what TensorFlow's wheel was built for, and what is here."""
    import tensorflow as tf

    from keras_pergrad.common.machine import accelerators

    build = tf.sysconfig.get_build_info()
    has_cuda = any(d.platform == "CUDA" for d in accelerators())
    cards = []
    for device in tf.config.list_physical_devices("GPU") if has_cuda else ():
        details = tf.config.experimental.get_device_details(device)
        capability = details.get("compute_capability")
        if capability is not None:
            name = details.get("device_name", device.name)
            cards.append({"name": name, "capability": list(capability)})
    libraries = [*_LIBRARIES.get(build.get("cuda_version", "")[:2], ())]
    cudnn = f"libcudnn.so.{build['cudnn_version']}" if libraries else None
    return {
        "driver": _DRIVER.exists() or bool(cards),
        "cards": cards,
        "built": bool(build.get("is_cuda_build")),
        "cuda": build.get("cuda_version"),
        "kernels": list(build.get("cuda_compute_capabilities", ())),
        "missing": [
            n for n in [*libraries, cudnn] if n and not _load_library(n)
        ],
        "cudnn": _cudnn_version(cudnn),
    }


def _load_library(name):
    """Load a library as TensorFlow finds it; None: it is not there."""
    packages = pathlib.Path(sysconfig.get_path("purelib"), "nvidia")
    for candidate in [name, *map(str, packages.glob(f"*/lib/{name}"))]:
        try:
            return ctypes.CDLL(candidate)
        except OSError:
            continue
    return None


def _cudnn_version(name):
    library = _load_library(name) if name else None
    if library is None:
        return None
    number = library.cudnnGetVersion()  # 91002 is 9.10.2
    return f"{number // 10_000}.{number // 100 % 100}.{number % 100}"


def judge(facts):
    """Yield what is to say of NVIDIA cards; nothing where there is none."""
    if not facts["driver"]:
        return
    if not facts["built"]:
        message = "there is an NVIDIA driver; this wheel was built without CUDA"
        yield Finding(
            WARNING,
            "CUDA",
            f"{message}: training uses the CPU",
            fix=_INSTALL_FIX,
        )
        return
    if facts["missing"]:
        message = f"libraries are missing: {', '.join(facts['missing'])}"
        level = WARNING if facts["cards"] else ERROR
        yield Finding(level, "CUDA", message, fix=_INSTALL_FIX)
    if not facts["cards"]:
        message = "there is an NVIDIA driver, but TensorFlow lists no GPU"
        fix = (
            "see what `nvidia-smi` prints, and whether CUDA_VISIBLE_DEVICES "
            "hides the card"
        )
        yield Finding(WARNING, "CUDA", message, fix=fix)
    # Wheels of TensorFlow 2.22 and later name neither kernels nor versions.
    for card in facts["cards"] if facts["kernels"] else ():
        yield _kernel_finding(card, facts["kernels"])
    if facts["cards"] and not facts["missing"]:
        unknown = "of an unknown version"
        cuda, cudnn = (facts[name] or unknown for name in ("cuda", "cudnn"))
        yield Finding(OK, "CUDA", f"{cuda}, cuDNN {cudnn}")


def _kernel_finding(card, wheel_kernels):
    """Compare a card's compute capability with the kernels of the wheel."""
    capability = tuple(card["capability"])
    description = (
        f"{card['name']}, compute capability {'.'.join(map(str, capability))}"
    )
    # A binary (sm_80) runs on its own major version, from its minor one on.
    # PTX (compute_90) is compiled by the driver for what is newer.
    binaries = [_version_of(k) for k in wheel_kernels if k.startswith("sm_")]
    ptx = [_version_of(k) for k in wheel_kernels if k.startswith("compute_")]
    if any(b[0] == capability[0] and b <= capability for b in binaries):
        return Finding(
            OK, "GPU", f"{description}: the wheel has kernels for it"
        )
    if any(p[0] == capability[0] and p <= capability for p in ptx):
        message = (
            f"{description}: kernels are compiled from PTX when they first run"
        )
        return Finding(OK, "GPU", message)
    newest = max([*binaries, *ptx], default=(0, 0))
    message = (
        f"{description}: the wheel has kernels for {', '.join(wheel_kernels)} "
        "only"
    )
    if capability > newest:
        return Finding(
            WARNING,
            "GPU",
            f"{message}. The driver may compile them, for half an hour, or "
            "fail with CUDA_ERROR_INVALID_PTX (tensorflow/tensorflow#89272)",
            fix="a newer TensorFlow, or a build for this card, such as "
            "NVIDIA's container",
        )
    fix = "an older TensorFlow, or CUDA_VISIBLE_DEVICES=-1 to use the CPU"
    return Finding(ERROR, "GPU", message, fix=fix)


def _version_of(kernel):
    """Turn `"sm_90"` into (9, 0), and `"compute_120"` into (12, 0)."""
    digits = re.search(r"_(\d+)", kernel).group(1)
    return int(digits[:-1]), int(digits[-1])
