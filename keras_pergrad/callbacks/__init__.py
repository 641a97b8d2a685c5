"""Callbacks that watch training; they depend on no mode and no rule."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keras_pergrad.callbacks.data_stall import DataStall
    from keras_pergrad.callbacks.device_placement import DevicePlacement
    from keras_pergrad.callbacks.gradient_variance import GradientVariance
    from keras_pergrad.callbacks.sample_values import SampleValues
else:
    from keras_pergrad.common.lazy_names import lazy

    __getattr__ = lazy(
        __name__,
        {
            "data_stall": ("DataStall",),
            "device_placement": ("DevicePlacement",),
            "gradient_variance": ("GradientVariance",),
            "sample_values": ("SampleValues",),
        },
    )

__all__ = [
    "DataStall",
    "DevicePlacement",
    "GradientVariance",
    "SampleValues",
]


def __dir__():
    return __all__
