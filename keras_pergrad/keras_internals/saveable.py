"""Objects whose numbers are saved with the model they are an attribute of.

Private names in use: `keras.src.saving.keras_saveable.KerasSaveable`,
`KerasSaveable._obj_type`.
"""

from keras.src.saving.keras_saveable import KerasSaveable


class Saveable(KerasSaveable):
    """A base with `save_own_variables` and `load_own_variables`."""

    def _obj_type(self):
        # Keras asks for one of its own kinds; of a loss it expects no more.
        return "Loss"
