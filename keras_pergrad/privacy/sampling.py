"""The examples of each batch, as a function of a seed and the step's number.

No state is kept between steps, so a restarted run draws the same batches as an
undisturbed one.
"""

import secrets

import numpy as np

from keras_pergrad.privacy.mechanism import Mechanism

#: Separates these numbers from others made from the same seed.
_PURPOSE = 0x6B7067


def make_key(seed):
    """Return the key of all draws, two integers; None: the system's own."""
    if seed is None:
        return secrets.randbits(64), secrets.randbits(64)
    words = np.random.SeedSequence([_PURPOSE, seed]).generate_state(2, "uint64")
    return int(words[0]), int(words[1])


def draw(mechanism: Mechanism, key, step, phase=0, part=0, parts=1):
    """Return the examples of one batch of a phase, sorted, (m,) integers."""
    # Of several workers each draws from its own part of the examples, number
    # `part` and every `parts`-th after it.

    def random(number):
        bits = np.random.Philox(key=key, counter=[0, number, part, phase])
        return np.random.Generator(bits)

    total = len(range(part, mechanism.examples, parts))
    chosen = mechanism.selection.rows(mechanism, random, step, total, parts)
    return np.sort(chosen) * parts + part
