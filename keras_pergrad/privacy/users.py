"""The examples that are used where each user may have only so many."""

from typing import Any

import numpy as np

from keras_pergrad.privacy.draws import Generators
from keras_pergrad.privacy.mechanism import EXAMPLE, UNIQUE, USER
from keras_pergrad.privacy.selections import SELECTIONS

SAMPLINGS_OF_USERS = [k for k, s in SELECTIONS.items() if s.supports_users]


def privacy_unit(user_ids):
    """Return whom the guarantee is for, one of `mechanism.UNITS`."""
    if user_ids is None:
        return EXAMPLE
    return UNIQUE if isinstance(user_ids, str) else USER


class Users:
    """The users of the examples, of each of whom only so many are used."""

    def __init__(self, ids, most):
        #: The number of the user of each example.
        self.ids = np.unique(np.asarray(ids), return_inverse=True)[1].ravel()
        self.most = most
        #: How many examples are used.
        self.count = int(np.minimum(np.bincount(self.ids), most).sum())
        self._key = self._rows = None

    def rows(self, key) -> Any:
        """Return the rows that are used with a key of draws, sorted."""
        if self._key != key:
            self._rows, self._key = self._draw_rows(key), key
        return self._rows

    def _draw_rows(self, key):
        # A number of a phase that no batch is drawn with.
        generator = Generators(key, phase=2**63, part=0)(0)
        order = generator.permutation(len(self.ids))
        users = self.ids[order]
        by_user = np.argsort(users, kind="stable")
        counts = np.bincount(users)
        starts = np.repeat(np.cumsum(counts) - counts, counts)
        rank = np.arange(len(users)) - starts
        return np.sort(order[by_user[rank < self.most]])


def check_users(total, user_ids, *, max_per_user, sampling):
    """Return the `Users` if these have several examples, else None."""
    is_text = isinstance(user_ids, str)
    has_ids = user_ids is not None and not is_text
    if has_ids != (max_per_user is not None) or (
        is_text and user_ids != UNIQUE
    ):
        received = f"user_ids of type {type(user_ids).__name__}"
        if is_text:
            received = f"user_ids={user_ids!r}"
        raise ValueError(
            "Expected `user_ids`, one for each example, together with "
            "`samples_per_user`; or user_ids='unique'. Received: "
            f"{received}, samples_per_user={max_per_user!r}"
        )
    if not has_ids:
        return None
    count = len(np.asarray(user_ids))
    if count != total:
        raise ValueError(
            f"Expected {total} `user_ids`, one for each example. "
            f"Received: {count}"
        )
    if sampling not in SAMPLINGS_OF_USERS:
        raise ValueError(
            f"With `user_ids` only sampling={SAMPLINGS_OF_USERS[0]!r} is "
            f"accounted for. Received: sampling={sampling!r}"
        )
    return Users(user_ids, max_per_user)
