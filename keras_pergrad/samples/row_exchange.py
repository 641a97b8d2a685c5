"""Other samples in the rows of what a gradient holds of the forward pass.

A gradient of zero does not make a sample vanish that is not finite: zero times
NaN is NaN. With another sample in its row it does.
"""

import tensorflow as tf

from keras_pergrad.keras_internals.op_copies import copy_of


class RowExchange:
    """Tensors of the step, with the samples `places`, (n,), in their rows.

    Lists that loops have kept are made anew, by running the loop once more.

    Args:
        use: the `Use` whose gradient holds the tensors.
        places: the number of the sample for each row.
    """

    def __init__(self, use, places):
        self._use, self._places = use, places
        self._known = {}

    def all(self, tensors):
        """Return the tensors with the exchanged rows.

        None: it is not known of one where its samples are, or an op that made
        it draws or assigns.
        """
        exchanged = [self._of(t) for t in tensors]
        return None if any(t is None for t in exchanged) else exchanged

    def _of(self, tensor):
        # The tensor is kept, so that its id stays its own.
        if id(tensor) not in self._known:
            self._known[id(tensor)] = tensor, self._found(tensor)
        return self._known[id(tensor)][1]

    def _found(self, tensor):
        if not tf.is_symbolic_tensor(tensor):
            # A value from outside of the step.
            return tensor
        known = self._use.seen.samples_in(tensor)
        if known and tensor.dtype != tf.variant:
            layout = self._use.seen.layout_in(tensor)
            if layout is None:
                return None
            return layout.taken(tensor, self._places, self._use.n)
        if known is False or tensor.dtype == tf.resource:
            return tensor
        # A list, or what the gradient has added to the forward pass.
        given = list(tensor.op.inputs)
        inputs = self.all(given)
        if inputs is None:
            return None
        if all(a is b for a, b in zip(given, inputs)):
            return tensor
        outputs = copy_of(tensor.op, inputs)
        if outputs is None:
            return None
        for output, copy in zip(tensor.op.outputs, outputs):
            self._known[id(output)] = output, copy
        return outputs[tensor.value_index]
