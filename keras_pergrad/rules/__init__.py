"""What a layer's per-sample gradient is; one small function a layer."""

from keras_pergrad.rules import basic as _basic  # noqa: F401
from keras_pergrad.rules import convolution as _convolution  # noqa: F401
from keras_pergrad.rules import einsum as _einsum  # noqa: F401
from keras_pergrad.rules import normalization as _normalization  # noqa: F401
from keras_pergrad.rules import recurrent as _recurrent  # noqa: F401
from keras_pergrad.rules import wrappers as _wrappers  # noqa: F401
from keras_pergrad.rules.registry import find_rule, register_rule

__all__ = ["find_rule", "register_rule"]
