"""The events of dp-accounting that take more than its constructors."""

import functools

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
