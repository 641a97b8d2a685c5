"""Per-sample gradients of one variable, kept factored."""

from keras_pergrad.factors.adapted import Adapted, Widened
from keras_pergrad.factors.base import SampleGradients
from keras_pergrad.factors.blocks import Blocks
from keras_pergrad.factors.columns import Columns
from keras_pergrad.factors.full import Full, Held, Product, Sum, together
from keras_pergrad.factors.joined import Joined, join
from keras_pergrad.factors.outer import Outer
from keras_pergrad.factors.patches import Patches, convolution_method
from keras_pergrad.factors.rows import Rows, squared_norm
from keras_pergrad.factors.windows import Windows
from keras_pergrad.factors.written_out import wide

__all__ = [
    "Adapted",
    "Blocks",
    "Columns",
    "Full",
    "Held",
    "Joined",
    "Outer",
    "Patches",
    "Product",
    "Rows",
    "SampleGradients",
    "Sum",
    "Widened",
    "Windows",
    "convolution_method",
    "join",
    "squared_norm",
    "together",
    "wide",
]
