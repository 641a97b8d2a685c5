from keras_pergrad.gradient_health.gradient_variance import (
    GradientVariance as GradientVariance,
)
from keras_pergrad.gradient_health.health_advice import (
    HealthAdvice as HealthAdvice,
)
from keras_pergrad.gradient_health.tasks import TaskConflicts as TaskConflicts
from keras_pergrad.influence.sample_values import SampleValues as SampleValues
from keras_pergrad.placement.device_placement import (
    DevicePlacement as DevicePlacement,
)
from keras_pergrad.stalls.accounting import StallReport as StallReport
from keras_pergrad.stalls.advice import Advice as Advice
from keras_pergrad.stalls.data_stall import DataStall as DataStall
