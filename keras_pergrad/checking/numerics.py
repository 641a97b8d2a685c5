"""The verdict on two arrays: equal, different by rounding, or wrong.

Two correct computations of the same sum differ, because they add in another
order or fuse a multiplication with an addition. How far they may differ
follows from the number format and from how many terms went into each
number; a difference beyond that has another cause.
"""

import dataclasses
import math

import numpy as np

from keras_pergrad.common.arguments import require_one_of
from keras_pergrad.keras_internals.models.parts import inner_layers
from keras_pergrad.keras_internals.tensorflow import settings

EXACT, ROUNDING, WRONG = "exact", "rounding", "wrong"

#: The format of float32 products on a GPU, whose sums are float32.
TENSOR_FLOAT_32 = "TensorFloat-32"
# Bits of precision are a property of the format that did the arithmetic.
# bfloat16 is not a NumPy type, so its unit roundoff is given by name.
_EPSILON = {
    "float64": 2.0**-52,
    "float32": 2.0**-23,
    TENSOR_FLOAT_32: 2.0**-10,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
    # Of the two formats of Keras's float8 layers the coarser one.
    "float8": 2.0**-2,
}


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The outcome of one comparison.

    Attributes:
        verdict: `"exact"`, `"rounding"` or `"wrong"`.
        error: the largest absolute difference (infinite for a NaN or an
            infinity on one side only).
        relative: `error` over the magnitude it was judged against.
        tolerance: the largest relative error that rounding explains.
        index: where the largest difference is, `None` when exact.
    """

    verdict: str
    error: float
    relative: float
    tolerance: float
    index: tuple[int, ...] | None

    @property
    def ok(self) -> bool:
        """Whether rounding explains the difference."""
        return self.verdict != WRONG

    def sentence(self, name: str) -> str:
        """Return a sentence on `name`, whose difference is not rounding."""
        return (
            f"{name} differs by {self.error:.3g} (relative "
            f"{self.relative:.1g}, rounding explains {self.tolerance:.1g}): "
            f"not rounding"
        )


def unit(dtype):
    """Return the gap between 1 and the next number of a format."""
    name = dtype if isinstance(dtype, str) else np.dtype(dtype).name
    advice = " Whole numbers have no rounding: compare them with ==."
    require_one_of("dtype", name, _EPSILON, advice=advice)
    return _EPSILON[name]


def tolerance(dtype, terms=1):
    """Return the largest relative error that rounding explains."""
    # A sum gathers an error of about √terms roundings, as often up as down;
    # the constants leave room for the chain of layers in front of it.
    roundoff = unit(dtype)
    if terms < 1:
        raise ValueError(
            f"`terms` expected the number of summed products, 1 or more. "
            f"Received: terms={terms}"
        )
    sums = unit("float32") if dtype == TENSOR_FLOAT_32 else roundoff
    return 16.0 * roundoff + 4.0 * math.sqrt(terms) * sums


def judge(reference, value, dtype="float32", *, terms=1, scale=0.0):
    """Compare an array with the right one, of the less precise `dtype`."""
    # The error is judged against the largest reference, or `scale` if that is
    # larger: a true zero got by cancellation needs the magnitude that it was
    # computed from.
    limit = tolerance(dtype, terms)
    reference = np.asarray(reference, dtype="float64")
    value = np.asarray(value, dtype="float64")
    if reference.shape != value.shape:
        raise ValueError(
            f"Expected two arrays of one shape. Received: "
            f"{reference.shape} and {value.shape}"
        )
    is_equal = (reference == value) | (np.isnan(reference) & np.isnan(value))
    if is_equal.all():
        return Verdict(EXACT, 0.0, 0.0, tolerance=limit, index=None)
    with np.errstate(invalid="ignore", over="ignore"):
        gap = np.where(is_equal, 0.0, np.abs(reference - value))
    gap = np.where(np.isnan(gap), np.inf, gap)
    index = np.unravel_index(int(np.argmax(gap)), gap.shape)
    error = float(gap[index])
    finite_sizes = np.abs(reference[np.isfinite(reference)])
    magnitude = max(float(scale), float(finite_sizes.max(initial=0.0)))
    relative = error / magnitude if magnitude else math.inf
    return Verdict(
        ROUNDING if relative <= limit else WRONG,
        error,
        relative,
        tolerance=limit,
        index=tuple(int(i) for i in index),
    )


def precision(model):
    """Return the least precise format that a layer with weights computes in."""
    layers = [layer for layer in inner_layers(model) if layer.weights]
    policies = {layer.compute_dtype for layer in layers}
    policies |= {getattr(layer, "quantization_mode", None) for layer in layers}
    for dtype in ("float8", "bfloat16", "float16", "float32", "float64"):
        if dtype in policies:
            return dtype
    return "float32"


def on_device(dtype, device):
    """Return the format in which products of a format are made on a device."""
    if dtype != "float32" or device.startswith("CPU"):
        return dtype
    return TENSOR_FLOAT_32 if settings.may_use_tf32() else dtype


def terms(model, x):
    """Return how many products go into one number of a step, at most."""
    fan_in = [math.prod(v.shape[:-1]) for v in model.trainable_weights]
    positions = math.prod(np.shape(x)[:-1]) if np.ndim(x) > 1 else np.size(x)
    return max([1, int(positions), *fan_in])
