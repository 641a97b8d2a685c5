"""The events of dp-accounting that take more than its constructors."""

import functools

import numpy as np


def library():
    """Import dp-accounting, or say how to install it."""
    try:
        import dp_accounting
        import dp_accounting.dp_event
        import dp_accounting.pld.privacy_loss_distribution
        import dp_accounting.rdp
    except ImportError as error:
        raise ImportError(
            "Private training counts epsilon with dp-accounting, which is not "
            "installed. Run: pip install 'keras-pergrad[privacy]'"
        ) from error
    return dp_accounting


def several_examples(mechanism, noise):
    """Return a Poisson step's event if a user has several examples."""
    # How many are in a batch is binomial, so a user's effect is a mixture
    # (Charles et al., "Fine-tuning large language models with user-level
    # differential privacy", arXiv 2407.07737).
    from scipy import stats

    numbers = np.arange(mechanism.examples_per_user + 1)
    chances = stats.binom.pmf(numbers, numbers[-1], mechanism.rate)
    return library().dp_event.MixtureOfGaussiansDpEvent(
        noise,
        tuple(float(k) for k in numbers),
        tuple(float(p) for p in chances),
    )


@functools.cache
def replaced_sensitivity():
    """Return the sensitivity to an exchange, in dp-accounting's unit."""
    # Exchanging a gradient moves the sum by twice the clip norm. dp-accounting
    # asks for noise over the clip norm, but takes it as noise over the
    # sensitivity (google/differential-privacy#378); if that changes, this
    # shows.
    dp = library()
    event = dp.GaussianDpEvent(1.0)

    def spent(relation, event):
        accountant = dp.rdp.RdpAccountant(neighboring_relation=relation)
        return accountant.compose(event).get_epsilon(1e-5)

    whole = dp.SampledWithoutReplacementDpEvent(1, 1, event)
    replaced = spent(dp.NeighboringRelation.REPLACE_ONE, whole)
    removed = spent(dp.NeighboringRelation.ADD_OR_REMOVE_ONE, event)
    return 2.0 if abs(replaced - removed) < 1e-6 else 1.0
