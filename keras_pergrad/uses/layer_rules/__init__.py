"""Layer rules: for weights in a loop, and rules of users."""

from keras_pergrad.uses.layer_rules import recurrent  # noqa: F401
from keras_pergrad.uses.layer_rules.registry import register_rule

__all__ = ["register_rule"]
