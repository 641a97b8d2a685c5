"""Random draws of a batch, recorded, repeated or made with other seeds.

Keras layers draw through `keras.random`, whose functions all end in one
backend module. While `recording()` is active, each draw there is kept together
with its seed. `replaying()` returns, in the same order, the rows that belong
to one sample. The results of the forward pass do not change by a single bit.

Private names in use: `keras.src.backend.tensorflow.random.draw_seed`,
`keras.src.backend.tensorflow.random.dropout`, and there the other functions of
`FUNCTIONS`.
"""

import contextlib
import dataclasses
import functools
import itertools
import threading
from typing import Any

import tensorflow as tf
from keras.src.backend.tensorflow import random as backend_random

from keras_pergrad.keras_internals.models.parts import shared_patch

FUNCTIONS = (
    "normal",
    "uniform",
    "categorical",
    "randint",
    "truncated_normal",
    "dropout",
    "gamma",
    "binomial",
    "beta",
    "shuffle",
)


@dataclasses.dataclass
class Draw:
    """One call of a random function: its seed, arguments and result."""

    name: str
    seed: object
    args: tuple
    kwargs: dict
    result: tf.Tensor
    graph: object

    def rows(self):
        """Return the drawn numbers, a row per sample; of dropout its mask."""
        # With the same seed, dropout of ones is the mask with its scale.
        if self.name != "dropout":
            return self.result
        with _pinned_seed(self.seed):
            inputs, *rest = self.args
            return backend_random.dropout(
                tf.ones_like(inputs), *rest, **self.kwargs
            )


class _ThreadDispatch(threading.local):
    """What the draws of a thread do.

    Attributes:
        handlers: functions of (name, original, args, seed, kwargs); the last
            one counts.
        seeds: seeds that `draw_seed` returns; the last one counts.
    """

    def __init__(self):
        self.handlers, self.seeds = [], []


_DISPATCH = _ThreadDispatch()


def _dispatching_function(original):
    """Return a random function that calls the handler of its thread."""
    name = original.__name__

    @functools.wraps(original)
    def function(*args, seed=None, **kwargs):
        if not _DISPATCH.handlers:
            # This is another thread, which has nothing to do with the model.
            return original(*args, seed=seed, **kwargs)
        handler = _DISPATCH.handlers[-1]
        return handler(name, original, args, seed, kwargs)

    return function


def _pinnable_draw_seed(original):
    def draw_seed(seed):
        return _DISPATCH.seeds[-1] if _DISPATCH.seeds else original(seed)

    return draw_seed


@contextlib.contextmanager
def _handled_by(handler):
    with contextlib.ExitStack() as stack:
        for name in FUNCTIONS:
            stack.enter_context(
                shared_patch(backend_random, name, _dispatching_function)
            )
        _DISPATCH.handlers.append(handler)
        stack.callback(_DISPATCH.handlers.pop)
        yield


@contextlib.contextmanager
def _pinned_seed(seed):
    with shared_patch(backend_random, "draw_seed", _pinnable_draw_seed):
        _DISPATCH.seeds.append(seed)
        try:
            yield
        finally:
            _DISPATCH.seeds.pop()


def current_graph():
    """Return the graph under construction, or None when executing eagerly."""
    if tf.executing_eagerly():
        return None
    return tf.compat.v1.get_default_graph()


def recording(on_draw):
    """Call `on_draw(draw)` for every random draw of this thread inside."""

    def record(name, original, args, seed, kwargs):
        # The seed is drawn here, once, so that a replay can repeat the draw.
        seed = backend_random.draw_seed(seed)
        with _pinned_seed(seed):
            result = original(*args, seed=seed, **kwargs)
        on_draw(
            Draw(
                name,
                seed,
                args,
                kwargs=kwargs,
                result=result,
                graph=current_graph(),
            )
        )
        return result

    return _handled_by(record)


def _reseeded(seed_in_place_of):
    """Let each of the thread's draws inside have another seed."""

    def draw(name, original, args, seed, kwargs):
        with _pinned_seed(seed_in_place_of(seed)):
            return original(*args, seed=seed, **kwargs)

    return _handled_by(draw)


def seeded(seed_of):
    """Have the thread's k-th draw inside take the seed `seed_of(k)`."""
    numbers = itertools.count()
    return _reseeded(lambda _: seed_of(next(numbers)))


def numbered(i):
    """Let the thread's draws inside be those of number i, such as a sample's.

    Each takes its seed as it would have, and another one of it for each i.
    """

    def folded(seed):
        state: Any = backend_random.draw_seed(seed)
        state = tf.cast(state, tf.int32)
        return tf.random.experimental.stateless_fold_in(state, i)

    return _reseeded(folded)


def replaying(rows):
    """Answer the thread's draws from `rows`; a dropout's row is its mask."""
    rows = list(rows)

    def replay(name, original, args, seed, kwargs):
        if not rows:
            raise ValueError(
                f"keras.random.{name} was called more often for one "
                "sample than for the whole batch, so that the batch's "
                "own numbers cannot be given to each sample. Let the "
                "layer that calls it draw as often whatever the number "
                "of samples and whenever it is called (hand `training` "
                "on to the layers inside), or use gradient_mode='batch'."
            )
        row = rows.pop(0)
        return args[0] * row if name == "dropout" else row

    return _handled_by(replay)
