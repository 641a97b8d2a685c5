"""Random draws of a batch, recorded so that one sample can repeat its own.

Keras layers draw through `keras.random`, whose functions all end in one
backend module. While `recording()` is active, each draw there is kept together
with its seed. `replaying()` returns, in the same order, the rows that belong
to one sample. The results of the forward pass do not change by a single bit.

Private names in use: `keras.src.backend.tensorflow.random` (the functions
below and `draw_seed`).
"""

import contextlib
import dataclasses
import functools

import tensorflow as tf
from keras.src.backend.tensorflow import random as backend_random

from keras_pergrad.keras_internals.patching import attribute

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
        """Return the drawn numbers, a row a sample; for dropout its scale."""
        if self.name != "dropout":
            return self.result
        with _pinned_seed(self.seed):
            inputs, *rest = self.args
            return backend_random.dropout(
                tf.ones_like(inputs), *rest, **self.kwargs
            )


def _patched(**attributes):
    stack = contextlib.ExitStack()
    for name, value in attributes.items():
        stack.enter_context(attribute(backend_random, name, value))
    return stack


def _pinned_seed(seed):
    return _patched(draw_seed=lambda _: seed)


def current_graph():
    """Return the graph under construction, or None when executing eagerly."""
    if tf.executing_eagerly():
        return None
    return tf.compat.v1.get_default_graph()


@contextlib.contextmanager
def recording(on_draw):
    """Call `on_draw(draw)` for every random draw made inside."""

    def recorded(name, original):
        @functools.wraps(original)
        def function(*args, seed=None, **kwargs):
            seed = backend_random.draw_seed(seed)
            with _pinned_seed(seed):
                result = original(*args, seed=seed, **kwargs)
            on_draw(Draw(name, seed, args, kwargs, result, current_graph()))
            return result

        return function

    functions = {
        name: recorded(name, getattr(backend_random, name))
        for name in FUNCTIONS
    }
    with _patched(**functions):
        yield


@contextlib.contextmanager
def replaying(rows):
    """Answer every draw made inside from the next tensor of `rows`.

    For dropout that is the mask, which is multiplied with the input.
    """
    rows = list(rows)

    def replayed(name):
        def function(*args, seed=None, **kwargs):
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

        return function

    with _patched(**{name: replayed(name) for name in FUNCTIONS}):
        yield
