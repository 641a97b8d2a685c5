"""What a layer's per-sample gradient is; one small function a layer."""

from keras_pergrad.rules import basic as _basic  # noqa: F401
from keras_pergrad.rules.registry import find_rule, register_rule

__all__ = ["find_rule", "register_rule"]
