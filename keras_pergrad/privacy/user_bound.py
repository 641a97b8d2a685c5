"""The examples that are used where each user may have only so many."""

import numpy as np

from keras_pergrad.common.arguments import positive_integer
from keras_pergrad.privacy.batch_selection import SELECTIONS
from keras_pergrad.privacy.mechanism import EXAMPLE, UNIQUE, USER
from keras_pergrad.privacy.sampling import make_key

SAMPLINGS_OF_USERS = [k for k, s in SELECTIONS.items() if s.serves_users]


def unit_of(user_ids):
    """Return whom the guarantee is for, one of `mechanism.UNITS`."""
    if user_ids is None:
        return EXAMPLE
    return UNIQUE if isinstance(user_ids, str) else USER


def rows_of_users(total, user_ids, most, sampling, seed):
    """Return the rows to use if users have several examples, else None."""
    named = user_ids is not None and not isinstance(user_ids, str)
    if named != (most is not None) or (
        isinstance(user_ids, str) and user_ids != UNIQUE
    ):
        given = f"user_ids of type {type(user_ids).__name__}"
        if isinstance(user_ids, str):
            given = f"user_ids={user_ids!r}"
        raise ValueError(
            "Expected `user_ids`, one for each example, together with "
            "`samples_per_user`; or user_ids='unique'. Received: "
            f"{given}, samples_per_user={most!r}"
        )
    if not named:
        return None
    count = len(np.asarray(user_ids))
    if count != total:
        raise ValueError(
            f"Expected {total} `user_ids`, one for each example. "
            f"Received: {count}"
        )
    positive_integer("samples_per_user", most)
    if sampling not in SAMPLINGS_OF_USERS:
        raise ValueError(
            f"With `user_ids` only sampling={SAMPLINGS_OF_USERS[0]!r} is "
            f"accounted for. Received: sampling={sampling!r}"
        )
    return bounded_rows(user_ids, most, seed)


def bounded_rows(user_ids, most, seed=None):
    """Return the rows that are used, sorted; of each user `most`, at random."""
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
