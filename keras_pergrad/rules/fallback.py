"""The generic fallback: exact for any layer that treats samples alone.

The layer's call is repeated for one sample after the other and
differentiated there, with respect to every variable that it reads.
"""

import tensorflow as tf

from keras_pergrad.factors import Full
from keras_pergrad.replay import Replay


def gradients(recorded, variables, dz, scale=None):
    """Yields (variable, SampleGradients) for a call without a rule.

    Args:
        recorded: the `Recorded` call.
        variables: the trainable variables that it reads.
        dz: for each floating-point output its gradient, or None.
        scale: the loss scaling factor that `dz` carries, or None.
    """
    flat = iter(dz)
    output_gradients = [
        next(flat) if t.dtype.is_floating else None for t in recorded.outputs
    ]
    replay = Replay(recorded, variables)
    used = [False] * len(variables)

    def one(i):
        found = replay.gradients(i, output_gradients)
        for k, gradient in enumerate(found):
            used[k] = gradient is not None
        return [
            tf.zeros(v.shape, v.dtype) if g is None else g
            for v, g in zip(replay.values, found)
        ]

    n = tf.shape(next(g for g in dz if g is not None))[0]
    stacked = tf.map_fn(
        one,
        tf.range(n),
        fn_output_signature=[
            tf.TensorSpec(v.shape, v.dtype) for v in replay.values
        ],
    )
    for k, variable in enumerate(variables):
        if used[k]:
            gradient = stacked[k]
            if scale is not None:
                gradient = gradient / tf.cast(scale, gradient.dtype)
            yield variable, Full(gradient)
