"""The ways to choose a batch's examples, each with what it hides of them.

A selection draws the batches and gives `accounting` the event of a step, so
that both rest on one description. To add one, add a class to `SELECTIONS`.
"""

import collections
import math

import numpy as np

from keras_pergrad.privacy.dp_events import (
    library,
    replaced_sensitivity,
    several_examples,
)

#: How the data sets of a guarantee differ: by one unit more or less; by one
#: exchanged for another, of a known number; by a blank in a unit's place.
RELATIONS = ADD_OR_REMOVE, REPLACE, BLANK = "add_or_remove", "replace", "blank"

#: Of Poisson batches, the fractions that are larger than each size: with three
#: sizes batches of 256 are padded by 7 %, and a fourth is never needed.
_LARGER = (0.31, 0.023, 1e-12)


class BatchSelection:
    """How batches are chosen; a `Mechanism` has the numbers."""

    in_words = ""
    serves_users = False  # who may have several examples
    has_canaries = True  # which are in the data or missing

    def relation(self, mechanism):
        """Return how neighbouring data differ, one of `RELATIONS`."""
        return ADD_OR_REMOVE

    def rows(self, mechanism, random, step, total, parts):
        """Choose from `total` examples; random(number) makes a generator."""
        raise NotImplementedError

    def sizes(self, mechanism):
        """Return a few sizes, ascending, of which one holds nearly any batch.

        Batches are padded to them, at the cost of few samples.
        """
        return [math.ceil(mechanism.examples / mechanism.steps_per_epoch)]

    def require_parts(self, mechanism, parts):
        """Refuse so many workers where the numbers do not allow them."""

    def noises(self, mechanism, steps):
        """Count the noise multipliers that hide an example in so many steps."""
        return collections.Counter(mechanism.noise(0, steps))

    def event(self, mechanism, noise):
        """Return the `DpEvent` of what one of these does."""
        whole = library().GaussianDpEvent(noise / mechanism.examples_per_user)
        return whole if mechanism.is_full_batch else self.part(mechanism, noise)

    def part(self, mechanism, noise):
        """Return the event of a batch that has not all examples."""
        raise NotImplementedError


class Poisson(BatchSelection):
    """Each example with one probability, independently of all else."""

    in_words = (
        "each example is in a batch with probability {rate:.6g}, "
        "independently of all others and of other batches"
    )
    serves_users = True

    def rows(self, mechanism, random, step, total, parts):
        return poisson(random(step), total, mechanism.rate)

    def sizes(self, mechanism):
        from scipy.stats import binom  # a requirement of dp-accounting

        found = binom.isf(_LARGER, mechanism.examples, mechanism.rate)
        return sorted({max(int(size), 1) for size in found})

    def part(self, mechanism, noise):
        dp = library()
        if mechanism.examples_per_user > 1:
            return several_examples(mechanism, noise)
        one = dp.GaussianDpEvent(noise)
        return dp.PoissonSampledDpEvent(mechanism.rate, one)


class Fixed(BatchSelection):
    """So many examples, none twice, drawn anew for each batch."""

    in_words = (
        "each batch is {batch_size} of {examples} examples, drawn without "
        "replacement, independently of other batches"
    )
    has_canaries = False

    def relation(self, mechanism):
        return ADD_OR_REMOVE if mechanism.is_full_batch else REPLACE

    def sizes(self, mechanism):
        return [mechanism.batch_size]

    def rows(self, mechanism, random, step, total, parts):
        self.require_parts(mechanism, parts)
        size = mechanism.batch_size // parts
        return random(step).choice(total, size, replace=False, shuffle=False)

    def require_parts(self, mechanism, parts):
        if mechanism.examples % parts or mechanism.batch_size % parts:
            raise ValueError(
                "With sampling='fixed' each replica draws the same number "
                "from as many examples. Expected `samples` and `batch_size` "
                f"to be multiples of {parts}, the number of replicas. "
                f"Received: samples={mechanism.examples}, batch_size="
                f"{mechanism.batch_size}. Use sampling='poisson', which needs "
                "no such numbers."
            )

    def part(self, mechanism, noise):
        dp = library()
        return dp.SampledWithoutReplacementDpEvent(
            mechanism.examples,
            mechanism.batch_size,
            dp.GaussianDpEvent(noise / replaced_sensitivity()),
        )


class Shuffled(BatchSelection):
    """The next examples of an order that is drawn anew each epoch."""

    in_words = (
        "each epoch goes through all examples in a new order; no "
        "amplification by sampling or shuffling is claimed"
    )

    def relation(self, mechanism):
        return BLANK

    def rows(self, mechanism, random, step, total, parts):
        epoch, place = divmod(step, mechanism.steps_per_epoch)
        edges = np.linspace(0, total, mechanism.steps_per_epoch + 1)
        first, last = np.round(edges[place : place + 2]).astype(int)
        return random(epoch).permutation(total)[first:last]

    def noises(self, mechanism, steps):
        # In an epoch every example is in one batch: only the noise of that
        # batch hides it. Whole epochs count, by the least noise in each.
        length = mechanism.steps_per_epoch
        noise = mechanism.noise(0, -(-steps // length) * length)
        return collections.Counter(noise.reshape(-1, length).min(axis=1))

    def part(self, mechanism, noise):
        each = noise / mechanism.examples_per_user
        return library().GaussianDpEvent(each)


SELECTIONS = {"poisson": Poisson(), "fixed": Fixed(), "shuffled": Shuffled()}


def poisson(generator, total, rate):
    """Return each of `total` numbers with a probability, independently."""
    # The gap from one drawn number to the next is geometric, so the time
    # depends on how many are drawn, not on `total`.
    if rate >= 1:
        return np.arange(total)
    drawn, last = [], -1
    while last < total:
        expected = (total - last) * rate
        size = int(expected + 4 * expected**0.5) + 16
        places = last + np.cumsum(generator.geometric(rate, size))
        drawn.append(places)
        last = places[-1]
    drawn = np.concatenate(drawn)
    return drawn[: np.searchsorted(drawn, total)]
