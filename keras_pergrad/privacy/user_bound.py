"""The examples that are used where each user may have only so many."""

import numpy as np

from keras_pergrad.privacy.sampling import make_key


def bounded_rows(user_ids, most, seed=None):
    """Return the rows that are used, sorted.

    If a user has more examples than allowed, some are chosen at random.

    Args:
        user_ids: the user of each example, (n,), integers or strings.
        most: how many examples a user may have.
        seed: an integer, or None.
    """
    # A counter that no batch is drawn with.
    bits = np.random.Philox(key=make_key(seed), counter=[0, 0, 0, 2**63])
    generator = np.random.Generator(bits)
    order = generator.permutation(len(user_ids))
    _, users = np.unique(np.asarray(user_ids)[order], return_inverse=True)
    by_user = np.argsort(users, kind="stable")
    counts = np.bincount(users)
    starts = np.repeat(np.cumsum(counts) - counts, counts)
    place = np.arange(len(users)) - starts
    return np.sort(order[by_user[place < most]])
