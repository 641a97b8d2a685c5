"""Rules of layers whose weights meet the data inside a loop, and of users."""

from keras_pergrad.rules import recurrent  # noqa: F401
from keras_pergrad.rules.registry import register_rule

__all__ = ["register_rule"]
