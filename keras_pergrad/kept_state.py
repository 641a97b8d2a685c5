"""What an eager forward pass changes in a model, and putting it back.

Private names in use: `Model._compile_loss`,
`keras.src.backend.common.global_state`.
"""

import contextlib

import tensorflow as tf
from keras.src.backend.common import global_state


def state_of(model):
    """The `tf.Variable`s that may change: of layers, metrics and seeds."""
    metrics = [
        *model.metrics,
        *getattr(model._compile_loss, "metrics", ()),
    ]
    variables = [
        *model.non_trainable_variables,
        *(v for metric in metrics for v in metric.variables),
    ]
    # Of layers that were given no seed; asking Keras for it makes it.
    seeds = global_state.get_global_attribute("global_seed_generator")
    if seeds is not None:
        variables.append(seeds.state)
    return [v.value for v in variables]


@contextlib.contextmanager
def put_back(variables):
    """Gives `tf.Variable`s the values that they have now, at the end."""
    saved = [(variable, tf.identity(variable)) for variable in variables]
    try:
        yield
    finally:
        for variable, value in saved:
            variable.assign(value)
