"""The examples of each batch, as a function of a seed and the step's number.

No state is kept between steps, so a restarted run draws the same batches as
an undisturbed one.
"""

import dataclasses
import secrets

import numpy as np

from keras_pergrad.privacy.mechanism import Mechanism

#: Separates these numbers from others made from the same seed.
_KEY_DOMAIN = 0x6B7067
#: The streams of the seeds of views and of noise: no part of the examples, from
#: which batches are drawn, has these numbers.
_VIEWS_STREAM, _NOISE_STREAM = 2**63, 2**63 + 1


def make_key(seed):
    """Return the key of all draws, two integers; None: the system's own."""
    if seed is None:
        return secrets.randbits(64), secrets.randbits(64)
    words = np.random.SeedSequence([_KEY_DOMAIN, seed]).generate_state(
        2, "uint64"
    )
    return int(words[0]), int(words[1])


@dataclasses.dataclass(frozen=True)
class Generators:
    """The generators of a phase's draws, by number."""

    key: tuple[int, int]
    phase: int
    part: int

    def __call__(self, number):
        # Philox counts in its first word. The other three name a stream, so
        # that no two batches share random numbers.
        counter = [0, number, self.part, self.phase]
        bit_generator = np.random.Philox(key=self.key, counter=counter)
        return np.random.Generator(bit_generator)

    def seed(self, number):
        """Return a seed, (2,) int64."""
        return self(number).bit_generator.random_raw(2).view("int64")


def noise_seed(key, phase):
    """Return the seed of the noise of a phase, by its number: (2,) int64."""
    return Generators(key, phase, _NOISE_STREAM).seed(0)


def views_seed(key, step, phase):
    """Return the seed of the views of one batch, (2,) int64."""
    return Generators(key, phase, _VIEWS_STREAM).seed(step)


def draw_batch(mechanism: Mechanism, key, step, *, phase=0, part=0, parts=1):
    """Return the examples of one batch of a phase, sorted, (m,) integers."""
    # Of several workers each draws from its own part of the examples, number
    # `part` and every `parts`-th after it.
    total = len(range(part, mechanism.examples, parts))
    chosen = mechanism.selection.rows(
        mechanism,
        Generators(key, phase, part),
        step,
        total=total,
        parts=parts,
    )
    return np.sort(chosen) * parts + part
