"""Sketches: small vectors that keep the lengths and angles of gradients.

A sketch is a random projection that is the same in every run, on every
machine. The distance of two sketches estimates the distance of the gradients:
S numbers give the squared distance to about √(2/S) of its value.

Each variable's gradient g is cut into blocks of S entries; each entry gets a
random sign, each block is turned by a random number of places, and the blocks
are added up:

    s[(o + turn_b) mod S] = Σ_b sign(b, o) · g[b · S + o]

Two entries of different blocks meet with probability 1/S, with random signs,
so that E⟨s(g), s(h)⟩ = ⟨g, h⟩ with a variance of at most
(‖g‖²‖h‖² + ⟨g, h⟩²)/S, as for a dense projection of S×P random signs, at P
additions instead of S·P. Signs and turns come from a counter-based generator,
block by block: nothing of the size of the model is held.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_pergrad.common.arguments import positive_integer

VARIABLE_SKETCH_SIZE = 16
# Never change this: the sketches of all runs must be made alike.
_KEY = 0x6B70675F736B6574
_BLOCKS_PER_CHUNK = 256


class GradientSketch:
    """Sketches the gradients of a model's variables.

    `size`: numbers in the sketch of the whole gradient, a whole number of at
    least 16; other values are refused with a `ValueError`.
    """

    def __init__(self, size: int = 1024):
        size = positive_integer("sketch_size", size)
        if size < VARIABLE_SKETCH_SIZE:
            raise ValueError(
                f"`sketch_size` must be at least {VARIABLE_SKETCH_SIZE}; 1024 "
                "keeps lengths and angles to about 3 %. Received: "
                f"sketch_size={size}"
            )
        self.size = size

    def __call__(
        self, gradients: Sequence[Any]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Sketch one gradient, an array a variable, in float64.

        Returns:
            The sketch of all, (S,), and that of each variable, (V, R).
        """
        # A gradient with ∞ in it has a sketch with NaN, as it should.
        with np.errstate(invalid="ignore"):
            sketches = [self._project(k, g) for k, g in enumerate(gradients)]
            variable_sketches = [
                self._fold(k, s) for k, s in enumerate(sketches)
            ]
            return np.sum(sketches, 0), np.stack(variable_sketches)

    def _project(self, variable, gradient):
        flat = np.ascontiguousarray(gradient).reshape(-1)
        blocks = -(-flat.size // self.size)
        sketch = np.zeros(self.size)
        for first in range(0, blocks, _BLOCKS_PER_CHUNK):
            last = min(first + _BLOCKS_PER_CHUNK, blocks)
            values = flat[first * self.size : last * self.size]
            random = _make_generator(variable, first // _BLOCKS_PER_CHUNK)
            turns = random.random_raw(last - first) % self.size
            signed = np.zeros((last - first) * self.size)
            signed[: values.size] = _signs(random, values.size) * values
            for block, turn in zip(signed.reshape(-1, self.size), turns):
                turn = int(turn)
                sketch[turn:] += block[: self.size - turn]
                sketch[:turn] += block[self.size - turn :]
        return sketch

    def _fold(self, variable, sketch):
        """Return the sketch of a sketch, of a size for one variable."""
        random = _make_generator(variable, -1)
        places = random.random_raw(self.size) % VARIABLE_SKETCH_SIZE
        signed = _signs(random, self.size) * sketch
        return np.bincount(
            places.astype(np.int64), signed, minlength=VARIABLE_SKETCH_SIZE
        )


def _make_generator(variable, part):
    """Return a separate random generator for each part of each variable."""
    counter = np.array([0, 0, variable, part % 2**64], np.uint64)
    return np.random.Philox(key=_KEY, counter=counter)


def _signs(random, count):
    """Return `count` random signs, ±1."""
    words = random.random_raw(-(-count // 64)).astype("<u8")
    bits = np.unpackbits(words.view(np.uint8), count=count)
    return 1 - 2 * bits.view(np.int8)
