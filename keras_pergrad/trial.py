"""What a few samples show about a model: whether it keeps them apart.

The model is run, outside of any trace, on three samples and on two of them
alone, and what its layers then give is compared. It shows layers that mix
samples, `add_loss` terms that do, and layers that are called on tensors whose
first axis is not the samples', whatever the sizes happen to be. Nothing that
the model assigns is kept; one trial serves all steps.

Private names in use: `Layer._flatten_layers`.
"""

import contextlib
import dataclasses
import functools
import weakref

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad import coupling, draws, refusals, trust
from keras_pergrad.patching import attribute
from keras_pergrad.replay import close

_FOUND = weakref.WeakKeyDictionary()
# (samples in the batch, those of them that are alone, the others): neither
# turning, shifting nor pairing the batch keeps these two as they are, and a
# size that has its like among other axes by chance has so only once.
_SPLITS = ((3, (1, 2), (0,)), (4, (1, 2), (0, 3)))


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
    specs = [(t.dtype.name, str(t.shape[1:])) for t in _tensors(x)]
    key = (training, tuple(specs), tuple(layer.trainable for layer in layers))
    known = _FOUND.setdefault(model, {})
    if key not in known:
        known[key] = (
            Trial()
            if trust.keeps_apart(model)
            else _try(model, layers, x, training)
        )
    return known[key]


def require(model, x, training=True):
    """Raises a ValueError by the name of what mixes samples."""

    def refuse(layer, error):
        raise error

    of(model, x, training).refuse(model, refuse)


def _tensors(structure):
    flat = tf.nest.flatten(structure, expand_composites=False)
    return [t for t in flat if tf.is_tensor(t)]


def _try(model, layers, x, training):
    found = []
    for split in _SPLITS:
        try:
            with tf.init_scope():
                found.append(_look(model, layers, x, training, split))
        except Exception:
            # A model may take only what cannot be made up, or one size of
            # batch: then what is known while tracing must do.
            continue
        if found[-1].mixer is None and found[-1].coupling_loss is None:
            break
    return found[-1] if found else Trial()


def _look(model, layers, x, training, split):
    size, alone, others = split
    x = _samples(x, size)
    whole = _Run(model, layers, x, training)

    def part(rows):
        taken = tf.nest.map_structure(
            lambda t: None if t is None else tf.gather(t, rows), x
        )
        return _Run(model, layers, taken, training, whole.rows(size, rows))

    some = part(alone)
    if [c.place for c in whole.calls] != [c.place for c in some.calls]:
        return Trial()
    pairs = list(zip(whole.calls, some.calls))
    sideways = {a.place for a, b in pairs if _is_sideways(a, b, split)}
    mixer = loss = None
    if not whole.coupled:
        mixer = _mixer(whole.calls, some.calls, alone, split)
        loss = _coupling_loss(whole, some, part(others), split)
    if mixer is not None or loss is not None:
        # What differs from call to call by itself shows nothing.
        again = part(range(size))
        full = size, range(size), ()
        if _mixer(whole.calls, again.calls, range(size), full) is not None:
            mixer = None
        if [_value(v) for _, v in whole.losses] != [
            _value(v) for _, v in again.losses
        ]:
            loss = None
    return Trial(frozenset(sideways), mixer, loss)


def _samples(x, size):
    """The first samples of a batch, or made-up ones of its shapes."""
    flat = _tensors(x)
    if all(hasattr(t, "numpy") and t.shape[0] >= size for t in flat):
        rows = [
            tuple(t.numpy()[i].tobytes() for t in flat) for i in range(size)
        ]
        if len(set(rows)) == size:
            return tf.nest.map_structure(
                lambda t: None if t is None else t[:size], x
            )
    rng = np.random.default_rng(0)
    return tf.nest.map_structure(
        lambda t: None if t is None else _made_up(t, size, rng), x
    )


def _made_up(tensor, size, rng):
    shape = [size, *(32 if s is None else s for s in tensor.shape[1:])]
    if tensor.dtype.is_floating:
        values = rng.uniform(size=shape)
    elif tensor.dtype == tf.string:
        values = rng.choice(["a", "b"], shape)
    else:
        # The least that a table of ids may have.
        values = rng.integers(0, 2, shape)
    return tf.cast(tf.constant(values), tensor.dtype)


@dataclasses.dataclass
class _Call:
    place: int
    parent: int | None
    inputs: list
    outputs: list


class _Run:
    """One call of the model, with what every layer took and gave."""

    def __init__(self, model, layers, x, training, drawn=None):
        self.calls, self.losses, self.draws = [], [], []
        self.coupled = False
        self._stack = []
        self._muted = 0
        with contextlib.ExitStack() as stack:
            for place, layer in enumerate(layers):
                call = self._watched(place, layer)
                stack.enter_context(attribute(layer, "call", call))
                noting = self._noting(place, layer.add_loss)
                stack.enter_context(attribute(layer, "add_loss", noting))
            stack.enter_context(coupling.refused_layers(model, self._refuse))
            stack.enter_context(keras.StatelessScope(collect_losses=True))
            stack.enter_context(
                draws.recording(self.draws.append)
                if drawn is None
                else draws.replaying(drawn)
            )
            if model._call_has_training_arg:
                model(x, training=training)
            else:
                model(x)

    def rows(self, size, taken):
        """What was drawn, for these samples."""
        found = [draw.rows() for draw in self.draws]
        return [
            tf.gather(r, taken) if r.shape.rank and r.shape[0] == size else r
            for r in found
        ]

    def _refuse(self, layer, error):
        # Known by its class, and refused with a better text.
        self.coupled = True

    def _noting(self, place, original):
        def add_loss(loss):
            self.losses += [(place, t) for t in tf.nest.flatten(loss)]
            return original(loss)

        return add_loss

    def _watched(self, place, layer):
        original = layer.call
        if isinstance(original, tf.types.experimental.PolymorphicFunction):
            original = original.python_function
        # Their layers run in loops, on steps.
        whole = isinstance(
            layer, (keras.layers.RNN, keras.layers.TimeDistributed)
        )

        @functools.wraps(original)
        def call(*args, **kwargs):
            if self._muted or not tf.executing_eagerly():
                return original(*args, **kwargs)
            parent = self._stack[-1] if self._stack else None
            self._stack.append(place)
            self._muted += whole
            try:
                outputs = original(*args, **kwargs)
            finally:
                self._muted -= whole
                self._stack.pop()
            self.calls.append(
                _Call(
                    place, parent, _tensors((args, kwargs)), _tensors(outputs)
                )
            )
            return outputs

        return call


def _is_batch(a, b, split):
    """Whether the first axis of what came twice is that of the samples."""
    size, alone, _ = split
    return (
        bool(a.shape.rank and b.shape.rank)
        and (a.shape[0], b.shape[0]) == (size, len(alone))
        and a.shape[1:] == b.shape[1:]
    )


def _is_sideways(a, b, split):
    inputs = any(
        x.shape != y.shape and not _is_batch(x, y, split)
        for x, y in zip(a.inputs, b.inputs)
    )
    return inputs or any(
        x.dtype.is_floating and not _is_batch(x, y, split)
        for x, y in zip(a.outputs, b.outputs)
    )


def _mixer(whole, some, rows, split):
    """The place of the layer inside which samples first meet, or None."""
    for a, b in zip(whole, some):
        if _same(a.outputs, b.outputs, rows, split):
            continue
        inside = _same(a.inputs, b.inputs, rows, split)
        return a.place if inside or a.parent is None else a.parent
    return None


def _same(first, second, rows, split):
    return all(
        bool(close(b, tf.gather(a, rows)))
        for a, b in zip(first, second)
        if _is_batch(a, b, split)
    )


def _coupling_loss(whole, some, rest, split):
    """The place of a layer whose loss is neither sum nor mean, or None."""
    size, alone, others = split
    for (place, a), (_, b), (_, c) in zip(
        whole.losses, some.losses, rest.losses
    ):
        a, b, c = _value(a), _value(b), _value(c)
        limit = 1e-3 * (abs(a) + abs(b) + abs(c) + 1e-3)
        is_sum = abs(a - b - c) <= limit
        mean = (len(alone) * b + len(others) * c) / size
        if not is_sum and abs(a - mean) > limit:
            return place
    return None


def _value(loss):
    return float(tf.reduce_sum(loss))
