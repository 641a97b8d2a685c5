"""Steps whose parts XLA compiles one by one, padded to a few sizes.

XLA compiles a program for each size of a batch, and the batches of private
training have many. So the step itself is not compiled, but the passes of each
part of the batch, with samples of zeros behind its own. These have the weight
zero in the sums. Metrics, noise and the optimizer are outside and see none.
"""

import tensorflow as tf

from keras_pergrad.keras_internals.overwritten import is_overwritten
from keras_pergrad.keras_internals.xla import in_xla
from keras_pergrad.modes.microbatches import Parting


def serves(mode, model):
    """Whether the parts of private steps are to be compiled one by one."""
    # Readers see whole batches, and so do overwritten variables.
    return (
        model.jit_compile
        and not model.run_eagerly
        and not mode.readers
        and model.distribute_strategy.num_replicas_in_sync == 1
        and not any(map(is_overwritten, model.trainable_variables))
    )


def may_begin():
    """Whether what is traced here is not compiled itself."""
    return not tf.executing_eagerly() and not in_xla()


def padded(parting, mode):
    """Return how a batch is taken apart, into padded parts."""
    if parting is None:
        parting = Parting(mode)
        parting.size = None
    sizes = mode.aggregation.batch_sizes()
    parting.sizes = part_sizes(sizes, parting.size)
    return parting


def part_sizes(sizes, most):
    """Return the sizes of the parts of batches of some sizes, ascending.

    All parts have `most` samples but for the last, which has the rest.
    """
    if most is None or most >= sizes[-1]:
        return sizes
    return sorted({most, *(size % most or most for size in sizes[:-1])})
