"""Facts about Metal: which versions load together, and what is known to fail.

They come from the plugins' binaries, sources and metadata, and from reports of
users; nothing of it was run on a Mac. Reading them needs no TensorFlow.
"""

import dataclasses

#: `platform.system()` and `platform.machine()` where Metal is.
MAC = "Darwin", "arm64"
#: What fails whatever the versions are, and the way out.
PANDAS = (
    "on Apple silicon the first `fit` hangs in a program that imports pandas "
    "before TensorFlow (keras-team/keras#23083)",
    "import tensorflow, keras or keras_pergrad first",
)
BOTH = (
    "tensorflow-metal and tensorflow-metal-plugin both register the platform "
    "METAL: where both are installed, `import tensorflow` aborts",
    "pip uninstall tensorflow-metal, or pip uninstall tensorflow-metal-plugin",
)
NO_XLA = "no plugin brings an XLA compiler", "compile(..., jit_compile=False)"
NO_KERNELS = (
    "ops without a kernel run on the CPU, such as those of float64 and of "
    "int64; one that works on a variable stops",
    "keras_pergrad.diagnose.predict_placement names those of a model, on any "
    "machine",
)
#: At "0" kernels of the community's plugin do not wait for the GPU.
SYNCHRONOUS = "TF_METAL_SYNCHRONOUS"
RACE = (
    "TensorFlow's host code writes variables beside the GPU's work, since "
    "TensorFlow 2.20 and 2.21 give a plugin no way to do it. Weights became "
    "NaN without an error until each kernel waited for the GPU"
)
TEST = (
    "keras_pergrad.check_gradients on your model, and the same fit twice from "
    "one seed: both must give the same numbers"
)


@dataclasses.dataclass(frozen=True)
class Plugin:
    """A device plugin for Metal, of which one release is known.

    Attributes:
        package: its name.
        version: the release.
        maker: whose it is.
        bounds: a release of it → the first TensorFlow with which that works,
            and the first with which it does not. The metadata of Apple's names
            neither, so pip lets every pair pass.
        mismatch: what happens with another TensorFlow.
        python: the first Python for which it is built, and the first not.
        macos: the first macOS on which it runs.
        install: how to install it, with a TensorFlow that fits.
        fix: how to mend a pair that does not fit.
        kernels: the file with the table of its kernels.
    """

    package: str
    version: str
    maker: str
    bounds: dict[tuple[int, ...], tuple[tuple[int, ...], tuple[int, ...]]]
    mismatch: str
    python: tuple[tuple[int, ...], tuple[int, ...]]
    macos: int
    install: str
    fix: str
    kernels: str

    @property
    def release(self):
        """The package with its version."""
        return f"{self.package} {self.version}"


APPLE = Plugin(
    package="tensorflow-metal",
    version="1.2.0",
    maker="Apple",
    bounds={
        (1, 2): ((2, 18), (2, 20)),
        (1, 1): ((2, 14), (2, 18)),
        (1, 0): ((2, 13), (2, 14)),
        (0, 8): ((2, 12), (2, 13)),
    },
    mismatch="`import tensorflow` fails",
    python=((3, 11), (3, 13)),
    macos=12,
    install='pip install "keras-pergrad[metal]"',
    fix=(
        'pip install "tensorflow>=2.18,<2.20" "tensorflow-metal==1.2.0" '
        "(Python 3.12 at most), or, to train on the CPU, "
        "pip uninstall tensorflow-metal"
    ),
    kernels="tensorflow_metal_1_2_0_kernels.json",
)
COMMUNITY = Plugin(
    package="tensorflow-metal-plugin",
    version="0.4.1",
    maker="the community",
    bounds={(0, 4): ((2, 21), (2, 22))},
    mismatch="it offers no GPU",
    python=((3, 11), (3, 14)),
    macos=15,
    install=(
        'pip install "tensorflow==2.21.*", then, once that is done, '
        'pip install "keras-pergrad[metal-community]"'
    ),
    fix=(
        'pip install "tensorflow==2.21.*", then, once that is done, '
        "pip install --force-reinstall --no-deps tensorflow-metal-plugin==0.4.1"
    ),
    kernels="tensorflow_metal_plugin_0_4_1_kernels.json",
)
#: Name of the platform, and of the extra → its plugin.
PLUGINS = {"metal": APPLE, "metal-community": COMMUNITY}
