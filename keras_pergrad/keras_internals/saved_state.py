"""State that is saved with the weights of a model that has it.

Private names in use: `keras.src.saving.keras_saveable.KerasSaveable`,
`KerasSaveable._obj_type`.
"""

from keras.src.saving.keras_saveable import KerasSaveable


class SavedState(KerasSaveable):
    """An attribute of a model that is saved and loaded with its weights."""

    # Subclasses define `save_own_variables(store)` and `load_own_variables`. In
    # the file they stand under the name of the attribute.

    def _obj_type(self):
        # Keras asks for one of its own kinds. A loss is the plainest of them.
        return "Loss"
