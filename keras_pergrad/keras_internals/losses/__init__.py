"""The losses of a batch, as Keras reduces them."""
