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
    """Return the key of all draws, two integers below 2⁶⁴.

    Args:
        seed: an integer; None: the operating system's own randomness.
    """
    if seed is None:
        return secrets.randbits(64), secrets.randbits(64)
    words = np.random.SeedSequence([_PURPOSE, seed]).generate_state(2, "uint64")
    return int(words[0]), int(words[1])


def draw(mechanism: Mechanism, key, step, phase=0, part=0, parts=1):
    """Return the examples of one batch, sorted, (m,) integers.

    Args:
        mechanism: how they are drawn, "poisson": each with probability
            batch_size / examples, independently; "fixed": batch_size of them,
            none twice, independently of other batches; "shuffled": the next
            ones in an order that is drawn anew each epoch.
        key: as from `make_key`.
        step: the number of the batch in its phase, from 0.
        phase: the number of the phase since the model began.
        part, parts: of several workers each draws from its own part of the
            examples, number `part` and every `parts`-th after it.

    Raises:
        ValueError: fixed batches cannot be shared by so many workers.
    """
    total = len(range(part, mechanism.examples, parts))
    if mechanism.sampling == "shuffled":
        rows = _shuffled(mechanism, key, step, phase, part, total)
    else:
        generator = _generator(key, step, phase, part)
        if mechanism.sampling == "poisson":
            rows = poisson(generator, total, mechanism.rate)
        else:
            size = shared_equally(mechanism, parts)
            rows = generator.choice(total, size, replace=False, shuffle=False)
    return np.sort(rows) * parts + part


def poisson(generator, total, rate):
    """Return each of `total` numbers with a probability, independently.

    The gap from one drawn number to the next is geometric, so the time depends
    on how many are drawn, not on `total`.
    """
    if rate >= 1:
        return np.arange(total)
    found, last = [], -1
    while last < total:
        expected = (total - last) * rate
        size = int(expected + 4 * expected**0.5) + 16
        places = last + np.cumsum(generator.geometric(rate, size))
        found.append(places)
        last = places[-1]
    found = np.concatenate(found)
    return found[: np.searchsorted(found, total)]


def shared_equally(mechanism, parts):
    """Return how many examples of a fixed batch each worker draws."""
    if mechanism.examples % parts or mechanism.batch_size % parts:
        raise ValueError(
            "With sampling='fixed' each replica draws the same number from "
            f"as many examples. Expected `samples` and `batch_size` to be "
            f"multiples of {parts}, the number of replicas. Received: "
            f"samples={mechanism.examples}, batch_size="
            f"{mechanism.batch_size}. Use sampling='poisson', which needs no "
            "such numbers."
        )
    return mechanism.batch_size // parts


def _shuffled(mechanism, key, step, phase, part, total):
    epoch, place = divmod(step, mechanism.steps_per_epoch)
    order = _generator(key, epoch, phase, part).permutation(total)
    edges = np.linspace(0, total, mechanism.steps_per_epoch + 1)
    first, last = np.round(edges[place : place + 2]).astype(int)
    return order[first:last]


def _generator(key, number, phase, part):
    bits = np.random.Philox(key=key, counter=[0, number, part, phase])
    return np.random.Generator(bits)
