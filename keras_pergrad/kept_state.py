"""An older name of `model_state.kept`."""

from keras_pergrad.model_state import kept as put_back

__all__ = ["put_back"]
