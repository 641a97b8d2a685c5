"""The ways to choose a batch's examples, each with what it hides of them.

A selection draws the batches and gives `accounting` the event of a step, so
that both rest on one description. To add one, add a class to `SELECTIONS`.
"""

import collections
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from keras_pergrad.common.optional import import_extra


def import_dp_accounting():
    """Return dp-accounting, or say how to install it."""
    what, extra = "Private training", "privacy"
    for part in ("dp_event", "pld.privacy_loss_distribution", "rdp"):
        import_extra(f"dp_accounting.{part}", what, extra)
    return import_extra("dp_accounting", what, extra)


def user_event(mechanism, noise):
    """Return a Poisson step's event if a user has several examples."""
    # How many are in a batch is binomial, so a user's effect is a mixture
    # (Charles et al., "Fine-tuning large language models with user-level
    # differential privacy", arXiv 2407.07737).
    from scipy import stats

    counts = np.arange(mechanism.examples_per_user + 1)
    probabilities = stats.binom.pmf(counts, counts[-1], mechanism.rate)
    return import_dp_accounting().dp_event.MixtureOfGaussiansDpEvent(
        noise,
        tuple(float(k) for k in counts),
        tuple(float(p) for p in probabilities),
    )


@functools.cache
def replacement_sensitivity():
    """Return the sensitivity to an exchange, in dp-accounting's unit."""
    # Exchanging a gradient moves the sum by twice the clip norm. dp-accounting
    # asks for noise over the clip norm, but takes it as noise over the
    # sensitivity (google/differential-privacy#378); if that changes, this
    # shows.
    dp = import_dp_accounting()
    event = dp.GaussianDpEvent(1.0)

    def compute_epsilon(relation, event):
        accountant = dp.rdp.RdpAccountant(neighboring_relation=relation)
        return accountant.compose(event).get_epsilon(1e-5)

    full_batch = dp.SampledWithoutReplacementDpEvent(1, 1, event)
    replace_epsilon = compute_epsilon(
        dp.NeighboringRelation.REPLACE_ONE, full_batch
    )
    remove_epsilon = compute_epsilon(
        dp.NeighboringRelation.ADD_OR_REMOVE_ONE, event
    )
    return 2.0 if abs(replace_epsilon - remove_epsilon) < 1e-6 else 1.0


#: How the data sets of a guarantee differ: by one unit more or less; by one
#: exchanged for another, of a known number; by a blank in a unit's place.
#: The names are those of dp-accounting's `NeighboringRelation`.
ADD_OR_REMOVE, REPLACE = "ADD_OR_REMOVE_ONE", "REPLACE_ONE"
BLANK = "REPLACE_SPECIAL"

#: The share of Poisson batches that exceed each padded size. With three sizes
#: batches of 256 are padded by 7 %; a larger batch practically never comes.
_OVERFLOW_RATES = (0.31, 0.023, 1e-12)


class BatchSelection:
    """How batches are chosen; a `Mechanism` has the numbers."""

    in_words: str = ""
    supports_users: bool = False  # who may have several examples
    supports_correlated_noise: bool = False
    supports_canaries: bool = True  # which are in the data or missing

    def relation(self, mechanism: Any) -> str:
        """Return how neighbouring data differ, such as `BLANK`."""
        return ADD_OR_REMOVE

    def rows(
        self,
        mechanism: Any,
        make_generator: Callable[[int], np.random.Generator],
        step: int,
        *,
        total: int,
        parts: int,
    ) -> np.ndarray:
        """Choose from `total` examples, with what `make_generator(n)` draws.

        Equal arguments give equal generators, and `make_generator` is equal
        and hashable for equal keys.
        """
        raise NotImplementedError

    def sizes(self, mechanism: Any) -> list[int]:
        """Return a few sizes, ascending, of which one holds nearly any batch.

        Batches are padded to them, at the cost of few samples.
        """
        return [math.ceil(mechanism.examples / mechanism.steps_per_epoch)]

    def require_parts(self, mechanism: Any, parts: int) -> None:
        """Refuse so many workers where the numbers do not allow them."""

    def count_noises(
        self, mechanism: Any, steps: int
    ) -> collections.Counter[Any]:
        """Count the noise multipliers that hide an example in so many steps."""
        return collections.Counter(mechanism.noise(0, steps))

    def event(self, mechanism: Any, noise: float) -> Any:
        """Return the `DpEvent` of a step with this noise.

        Here that of a batch which any example is in.
        """
        user_noise = noise / mechanism.examples_per_user
        return import_dp_accounting().GaussianDpEvent(user_noise)


class Poisson(BatchSelection):
    """Each example with one probability, independently of all else."""

    in_words = (
        "each example is in a batch with probability {0.rate:.6g}, "
        "independently of all others and of other batches"
    )
    supports_users = True

    def rows(self, mechanism, make_generator, step, *, total, parts):
        return poisson_sample(make_generator(step), total, mechanism.rate)

    def sizes(self, mechanism):
        from scipy.stats import binom

        group = math.ceil(mechanism.examples / mechanism.groups)
        quantiles = binom.isf(_OVERFLOW_RATES, group, mechanism.group_rate)
        return sorted({max(int(size), 1) for size in quantiles})

    def event(self, mechanism, noise):
        gaussian = super().event(mechanism, noise)
        if mechanism.group_rate >= 1:
            return gaussian
        if mechanism.examples_per_user > 1:
            return user_event(mechanism, noise)
        dp = import_dp_accounting()
        return dp.PoissonSampledDpEvent(mechanism.group_rate, gaussian)


class Fixed(BatchSelection):
    """A fixed number of examples, drawn anew for each batch."""

    in_words = (
        "each batch is {0.batch_size} of {0.examples} examples, drawn without "
        "replacement, independently of other batches"
    )
    supports_canaries = False

    def relation(self, mechanism):
        return ADD_OR_REMOVE if mechanism.is_full_batch else REPLACE

    def sizes(self, mechanism):
        return [mechanism.batch_size]

    def rows(self, mechanism, make_generator, step, *, total, parts):
        self.require_parts(mechanism, parts)
        size = mechanism.batch_size // parts
        return make_generator(step).choice(
            total, size, replace=False, shuffle=False
        )

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

    def event(self, mechanism, noise):
        if mechanism.is_full_batch:
            return super().event(mechanism, noise)
        dp = import_dp_accounting()
        return dp.SampledWithoutReplacementDpEvent(
            mechanism.examples,
            mechanism.batch_size,
            dp.GaussianDpEvent(noise / replacement_sensitivity()),
        )


class Shuffled(BatchSelection):
    """The next examples of an order that is drawn anew each epoch."""

    in_words = (
        "each epoch goes through all examples in a new order; no "
        "amplification by sampling or shuffling is claimed"
    )

    def relation(self, mechanism):
        return BLANK

    def rows(self, mechanism, make_generator, step, *, total, parts):
        epoch, position = divmod(step, mechanism.steps_per_epoch)
        edges = np.linspace(0, total, mechanism.steps_per_epoch + 1)
        first, last = np.round(edges[position : position + 2]).astype(int)
        return self._order(make_generator, epoch, total)[first:last]

    def _order(self, make_generator, epoch, total):
        return make_generator(epoch).permutation(total)

    def count_noises(self, mechanism, steps):
        # In an epoch every example is in one batch: only the noise of that
        # batch hides it. Whole epochs count, by the least noise in each.
        epoch_steps = mechanism.steps_per_epoch
        noise = mechanism.noise(0, -(-steps // epoch_steps) * epoch_steps)
        return collections.Counter(noise.reshape(-1, epoch_steps).min(axis=1))


class Cyclic(Poisson):
    """Poisson sampling from one group of the examples after the other."""

    # With as many groups as the strategy of the noise has bands, no example
    # moves two rows of the strategy at once, so that the noise of a group's
    # steps hides it as independent noise would: theorem 4 of
    # Choquette-Choo et al., arXiv 2306.08153.

    in_words = (
        "the examples are split into {0.groups} groups at random, which take "
        "turns; each example of a step's group is in the batch with "
        "probability {0.group_rate:.6g}, independently of all others and of "
        "other batches"
    )
    supports_users = False
    supports_correlated_noise = True

    def relation(self, mechanism):
        return BLANK  # The groups depend on how many examples there are.

    def rows(self, mechanism, make_generator, step, *, total, parts):
        order = _fixed_order(make_generator, total)
        group = order[step % mechanism.groups :: mechanism.groups]
        rate = mechanism.group_rate
        return group[poisson_sample(make_generator(step), len(group), rate)]

    def count_noises(self, mechanism, steps):
        noise = mechanism.noise(0, steps)[:: mechanism.groups]
        return collections.Counter(
            noise / mechanism.strategy.sensitivity(steps, steps)
        )


class Ordered(Shuffled):
    """The next examples of an order that is drawn once."""

    in_words = (
        "each epoch goes through all examples in the same order; no "
        "amplification by sampling or shuffling is claimed"
    )
    supports_correlated_noise = True

    def _order(self, make_generator, epoch, total):
        return _fixed_order(make_generator, total)

    def count_noises(self, mechanism, steps):
        if mechanism.strategy is None:
            return super().count_noises(mechanism, steps)
        (noise,) = set(mechanism.noise(0, steps))
        period = mechanism.steps_per_epoch
        # All steps together are one Gaussian mechanism.
        return collections.Counter(
            [noise / mechanism.strategy.sensitivity(steps, period)]
        )


SELECTIONS = {
    "poisson": Poisson(),
    "fixed": Fixed(),
    "shuffled": Shuffled(),
    "cyclic": Cyclic(),
    "ordered": Ordered(),
}
SAMPLINGS = tuple(SELECTIONS)
#: The number of a generator that no step has.
_ORDER = 2**63


@functools.lru_cache(maxsize=16)
def _fixed_order(make_generator, total):
    return make_generator(_ORDER).permutation(total)


def poisson_sample(generator, total, rate):
    """Draw each of `total` numbers with one probability, independently."""
    # The gap from one drawn number to the next is geometric, so the time
    # depends on how many are drawn, not on `total`.
    if rate >= 1:
        return np.arange(total)
    chunks, last = [], -1
    while last < total:
        expected = (total - last) * rate
        size = int(expected + 4 * expected**0.5) + 16
        chunk = last + np.cumsum(generator.geometric(rate, size))
        chunks.append(chunk)
        last = chunk[-1]
    chunks = np.concatenate(chunks)
    return chunks[: np.searchsorted(chunks, total)]
