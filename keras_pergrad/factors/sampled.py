"""Tensors of samples in factors: all of them changed, or samples blanked."""

import copy

import tensorflow as tf

from keras_pergrad.factors.written_out import zero

#: Numbers of a sample that are blanked without asking whether any must be:
#: that costs less than the ops of a condition.
_SMALL_SIZE = 4000


class Sampled:
    """What holds tensors whose first axis is the sample.

    Nothing changes it after its constructor.

    Attributes:
        sampled: the names of the attributes that follow the samples: tensors
            with the samples on the first axis, `Sampled` objects, lists of
            either, or None.
    """

    sampled: tuple[str, ...] = ()


class Shared(Sampled):
    """What several factors ask for: each answer is made once in a graph."""

    def __init__(self):
        self._answers = {}

    def __getstate__(self):
        # What a copy, with other tensors, answers is something else.
        return {**vars(self), "_answers": {}}

    def once(self, question, make, weights=None):
        """Return `make()`, made once for a question and a weights tensor."""
        # The tensors of a branch cannot be used outside of it.
        graph = tf.compat.v1.get_default_graph()
        key = graph, question, id(weights)
        if key not in self._answers:
            # The weights are kept, so that nothing else gets their id.
            self._answers[key] = weights, make()
        return self._answers[key][1]


def map_factors(factors, change):
    """Return factors with each of their tensors changed, None as None.

    A tensor that several factors hold is changed once, and they share it.

    Args:
        factors: `SampleGradients`, or None.
        change: a function of a tensor, (n, ...), of floats or integers; only
            n and the type may be others afterwards.
    """
    done = {}
    return [_mapped(factor, change, done) for factor in factors]


def _mapped(part, change, done):
    if part is None:
        return None
    if isinstance(part, list):
        return [_mapped(one, change, done) for one in part]
    if id(part) not in done:
        if isinstance(part, Sampled):
            if not part.sampled:
                raise NotImplementedError(
                    f"{type(part).__name__} must name in `sampled` the "
                    "attributes that follow the samples, tensors or factors."
                )
            done[id(part)] = mapped = copy.copy(part)
            for name in part.sampled:
                value = _mapped(getattr(part, name), change, done)
                setattr(mapped, name, value)
        else:
            done[id(part)] = change(part)
    return done[id(part)]


def select(factors, keep):
    """Return factors that are blank for the samples that are not kept.

    A weight of zero is not enough: zero times NaN is NaN. Large tensors are
    not touched if every sample is kept.

    Args:
        factors: `SampleGradients`; None stays None.
        keep: (n,) booleans.
    """
    tensors = {}
    map_factors(factors, lambda t: tensors.setdefault(id(t), t))
    small, large = [], []
    for tensor in tensors.values():
        if tensor.dtype.is_floating:
            size = tensor.shape[1:].num_elements()
            is_small = size is not None and size <= _SMALL_SIZE
            (small if is_small else large).append(tensor)
    blanked = _blank(keep, small)
    if large:
        # A called function would spare ops, but would hide where they run, and
        # each could not run on the device that has its kernel.
        blanked += tf.cond(
            tf.reduce_all(keep), lambda: large, lambda: _blank(keep, large)
        )
    by_id = {}
    for tensor, chosen in zip(small + large, blanked):
        chosen.set_shape(tensor.shape)
        by_id[id(tensor)] = chosen
    return map_factors(factors, lambda t: by_id.get(id(t), t))


def _blank(keep, tensors):
    """Return tensors with zeros for samples that are not kept."""
    masks = {
        rank: tf.reshape(keep, [-1] + [1] * (rank - 1))
        for rank in {t.shape.rank for t in tensors}
    }
    return [tf.where(masks[t.shape.rank], t, zero(t.dtype)) for t in tensors]
