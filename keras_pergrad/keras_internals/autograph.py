"""AutoGraph in a user's `tf.function`: kept out of the package's own code.

It would convert every function that is called while the step is traced, which
takes many times as long as the trace.
"""

import tensorflow as tf

not_converted = tf.autograph.experimental.do_not_convert


def converted(function):
    """Return a user's function as AutoGraph calls it where it is on."""
    autograph = tf.__internal__.autograph
    context = autograph.control_status_ctx()
    if context.status.name != "ENABLED" or not callable(function):
        return function
    return autograph.tf_convert(function, context)
