"""Tries a model out, once for each kind of batch.

Private names in use: `Layer._flatten_layers`.
"""

import dataclasses
import weakref

import tensorflow as tf

from keras_pergrad import refusals
from keras_pergrad.kept_state import put_back
from keras_pergrad.trial import comparison
from keras_pergrad.trial.run import Run
from keras_pergrad.trial.samples import few, tensors
from keras_pergrad.trial.trust import keeps_apart

_FOUND = weakref.WeakKeyDictionary()
# (samples in the batch, those of them that are alone, the others): neither
# turning, shifting nor pairing the batch keeps these two as they are, and a
# size that has its like among other axes by chance has so only once.
_SPLITS = ((3, (1, 2), (0,)), (4, (1, 3), (0, 2)))


@dataclasses.dataclass(frozen=True)
class Trial:
    """What was found; layers by their place in `model._flatten_layers()`.

    Attributes:
        sideways: layers that were given or gave a tensor whose first axis is
            not that of the samples.
        mixer: the layer whose call mixes samples, or None.
        coupling_loss: the layer that adds a loss of which no sample has a
            part, or None.
    """

    sideways: frozenset = frozenset()
    mixer: int | None = None
    coupling_loss: int | None = None

    def refuse(self, model, refuse):
        """Calls `refuse(layer, error)` for what mixes samples."""
        layers = model._flatten_layers()
        for place, text in (
            (self.mixer, refusals.mixes),
            (self.coupling_loss, refusals.coupling_loss),
        ):
            if place is not None:
                refuse(layers[place], ValueError(text(layers[place])))


def of(model, x, training=True):
    """The `Trial` of a model, from a former one where there was one.

    Args:
        model: a built `keras.Model`.
        x: a batch of its inputs; in a graph only its shapes and types count,
            and the samples are made up.
        training: whether its layers are called for training.
    """
    layers = model._flatten_layers()
    specs = [(t.dtype.name, str(t.shape[1:])) for t in tensors(x)]
    key = (training, tuple(specs), tuple(layer.trainable for layer in layers))
    known = _FOUND.setdefault(model, {})
    if key not in known:
        known[key] = (
            Trial() if keeps_apart(model) else _try(model, layers, x, training)
        )
    return known[key]


def require(model, x, training=True):
    """Raises a ValueError by the name of what mixes samples."""

    def refuse(layer, error):
        raise error

    of(model, x, training).refuse(model, refuse)


def _try(model, layers, x, training):
    found = []
    for split in _SPLITS:
        try:
            with tf.init_scope(), put_back(_plain_variables(layers)):
                found.append(_look(model, layers, x, training, split))
        except Exception:
            # A model may take only what cannot be made up, or one size of
            # batch: then what is known while tracing must do.
            continue
        if found[-1].mixer is None and found[-1].coupling_loss is None:
            break
    return found[-1] if found else Trial()


def _plain_variables(layers):
    """Those of TensorFlow: a change of Keras's own is not kept anyway."""
    held = []
    for value in (v for layer in layers for v in vars(layer).values()):
        if isinstance(value, dict):
            held += value.values()
        else:
            held += value if isinstance(value, (list, tuple)) else [value]
    return [value for value in held if isinstance(value, tf.Variable)]


def _look(model, layers, x, training, split):
    size, alone, others = split
    x = few(x, size)
    whole = Run(model, layers, x, training)

    def part(rows):
        taken = tf.nest.map_structure(
            lambda t: None if t is None else tf.gather(t, rows), x
        )
        return Run(model, layers, taken, training, whole.rows(size, rows))

    some = part(alone)
    if [c.place for c in whole.calls] != [c.place for c in some.calls]:
        return Trial()
    pairs = list(zip(whole.calls, some.calls))
    sideways = {
        a.place for a, b in pairs if comparison.is_sideways(a, b, split)
    }
    mixer = loss = None
    if not whole.coupled:
        mixer = comparison.mixer(whole.calls, some.calls, alone, split)
        if whole.losses:
            loss = comparison.coupling_loss(whole, some, part(others), split)
        shuffled = [p for p, t in whole.shuffled if t.shape[0] == size]
        if shuffled:
            return Trial(frozenset(sideways), shuffled[0], loss)
    if mixer is not None or loss is not None:
        # What differs from call to call by itself shows nothing.
        again = part(range(size))
        full = size, range(size), ()
        if (
            comparison.mixer(whole.calls, again.calls, range(size), full)
            is not None
        ):
            mixer = None
        if [comparison.value(v) for _, v in whole.losses] != [
            comparison.value(v) for _, v in again.losses
        ]:
            loss = None
    return Trial(frozenset(sideways), mixer, loss)
