"""The rates of devices, by which factors choose between their methods.

Every method is exact; the rates tell which one is fast. They were measured by
`python -m benchmarks.steps.rates`, which prints the row of a device.
"""

from typing import NamedTuple

from keras_pergrad.keras_internals.tensorflow.devices import has_cuda_card
from keras_pergrad.keras_internals.tensorflow.settings import in_xla


class ProductRates(NamedTuple):
    """Rates of sums of outer products.

    The unit is a multiplication in a product of many rows.

    Attributes:
        gram: for a multiplication in a Gram matrix.
        hold: to hold a number of a gradient.
        hold_gram: to hold one of a Gram matrix, or of a factor that is
            multiplied by weights.
    """

    gram: float
    hold: float
    hold_gram: float


class ConvolutionRates(NamedTuple):
    """Rates of convolutions, in microseconds a sample of a batch of 64.

    Attributes:
        call: to call an op.
        row: to look up a row.
        copy: to copy a number.
        long_copy: to copy one in a row of a window.
        skip: in addition to `copy`, if the slice has a stride.
        channel: to multiply one by another in its own channel, and add.
        multiply: for a multiplication in a matmul of each sample.
        gram: for one in a Gram matrix.
        group: for the Gram matrices of a group of channels, in addition.
        unfold: for one in the convolution that unfolds a row of windows.
        whole: for one in a product of the whole batch.
        shift: to add a number of a Gram matrix at a tap.
        hold: to write a number of a gradient, square it and take it into the
            weighted sum.
        filter_gradient: to begin the batch's own filter gradient.
        depthwise: in that, for a number of a depthwise kernel; 0.01 to 0.3
            were measured on a CPU.
        all_taps: for a multiplication in the op that gives all taps of a
            depthwise kernel.
        patch_gram: to begin a Gram matrix of windows.
        pixel_gram: to begin one of pixels.
        loop: to begin a loop over the samples.
        turn: for a multiplication in that loop.
    """

    call: float
    row: float
    copy: float
    long_copy: float
    skip: float
    channel: float
    multiply: float
    gram: float
    group: float
    unfold: float
    whole: float
    shift: float
    hold: float
    filter_gradient: float
    depthwise: float
    all_taps: float
    patch_gram: float
    pixel_gram: float
    loop: float
    turn: float


class Rates(NamedTuple):
    """The rates of a device, with XLA or without.

    Attributes:
        products: `ProductRates`.
        convolutions: `ConvolutionRates`.
    """

    products: ProductRates
    convolutions: ConvolutionRates


#: Two x86 cores.
CPU = Rates(
    ProductRates(gram=1.2, hold=32, hold_gram=32),
    ConvolutionRates(
        call=1.5,
        row=3.5e-3,
        copy=0.33e-3,
        long_copy=0.33e-3,
        skip=6e-3,
        channel=0.5e-3,
        multiply=9.5e-6,
        gram=14e-6,
        group=1,
        unfold=19e-6,
        whole=9.5e-6,
        shift=0.5e-3,
        hold=0.6e-3,
        filter_gradient=5,
        depthwise=0.03,
        all_taps=0.2e-3,
        patch_gram=1,
        pixel_gram=8,
        loop=100,
        turn=1.5 * 9.5e-6,
    ),
)
# XLA's code for a CPU is slow to write the products of single samples, and to
# copy, so the choice is often a Gram matrix of pixels.
CPU_XLA = Rates(
    ProductRates(gram=1.4, hold=240, hold_gram=60),
    CPU.convolutions._replace(
        call=0.012,
        row=3.1e-3,
        copy=1.6e-3,
        long_copy=1.4e-3,
        skip=0,
        channel=0.55e-3,
        multiply=12e-6,
        gram=25e-6,
        group=4,
        unfold=3e-6,
        whole=14e-6,
        shift=0.3e-3,
        hold=3.1e-3,
        turn=1.5 * 12e-6,
    ),
)
#: Device, "cpu" or "cuda", and whether XLA compiles → rates. A device without a
#: row has the CPU's: no card has been measured yet.
TABLE = {("cpu", False): CPU, ("cpu", True): CPU_XLA}


def rates():
    """Return the `Rates` of the device on which a step is being traced."""
    xla, device = in_xla(), "cuda" if has_cuda_card() else "cpu"
    return TABLE.get((device, xla), TABLE["cpu", xla])
