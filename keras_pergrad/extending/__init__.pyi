from keras_pergrad.factors import Full as Full
from keras_pergrad.factors import Outer as Outer
from keras_pergrad.factors import Product as Product
from keras_pergrad.factors import Rows as Rows
from keras_pergrad.factors import SampleGradients as SampleGradients
from keras_pergrad.factors import Sum as Sum
from keras_pergrad.proof.tensor_types import At as At
from keras_pergrad.proof.tensor_types import Divisor as Divisor
from keras_pergrad.proof.tensor_types import Free as Free
from keras_pergrad.proof.tensor_types import Mixes as Mixes
from keras_pergrad.proof.tensor_types import Total as Total
from keras_pergrad.proof.tensor_types import Untyped as Untyped
from keras_pergrad.proof.tensor_types import (
    register_type_rule as register_type_rule,
)
from keras_pergrad.uses.layer_rules import register_rule as register_rule
