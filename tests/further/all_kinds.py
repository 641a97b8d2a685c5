"""All further kinds of models, by name."""

from tests.further import (  # noqa: F401
    dynamics,
    generative,
    hub_mixed,
    hub_text,
    hub_vision,
    images,
    recommenders,
    sequences,
    structured,
)
from tests.further.kinds import KINDS

__all__ = ["KINDS", "SLOW"]

#: Those that take more than three seconds.
SLOW = frozenset()
