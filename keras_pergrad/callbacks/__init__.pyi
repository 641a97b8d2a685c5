from keras_pergrad.gradient_health.gradient_variance import (
    GradientVariance as GradientVariance,
)
from keras_pergrad.influence.sample_values import SampleValues as SampleValues
from keras_pergrad.placement.device_placement import (
    DevicePlacement as DevicePlacement,
)
from keras_pergrad.stalls.data_stall import DataStall as DataStall
