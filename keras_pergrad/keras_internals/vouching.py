"""The names by which a user vouches for layers and ops."""

import tensorflow as tf

from keras_pergrad.keras_internals.model_parts import layers_of


def vouched_names(model, names):
    """Return `compile(vouched=...)` as a tuple; refuse what names nothing."""
    if isinstance(names, str):
        names = [names]
    names = tuple(names)
    layers = {layer.name for layer in layers_of(model)}
    for name in names:
        known = isinstance(name, str) and (
            name in layers or hasattr(tf.raw_ops, name) or not model.built
        )
        if not known:
            raise ValueError(
                "`vouched` expected names of layers of the model or types of "
                "ops of TensorFlow, such as 'EagerPyFunc'. Received: "
                f"{name!r}. The layers are: {', '.join(sorted(layers))}"
            )
    return names
