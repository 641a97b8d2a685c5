"""What the layers share."""

import keras


class Own(keras.layers.Layer):
    """A layer with weights of its own; `form` says which of its kinds."""

    def __init__(self, form=None):
        super().__init__()
        self.form = form

    def weight(self, *shape, scale=0.5, trainable=True):
        """A weight of this shape, normally distributed."""
        values = keras.initializers.RandomNormal(0.0, scale)
        return self.add_weight(
            shape=shape, initializer=values, trainable=trainable
        )
