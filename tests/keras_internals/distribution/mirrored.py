"""What holds under MirroredStrategy on two devices; run by test_mirrored."""

from tests.keras_internals.distribution import (
    mirrored_gradients,
    mirrored_loops,
    mirrored_training,
)
from tests.keras_internals.distribution.two_devices import CHECKS, main

__all__ = [
    "CHECKS",
    "mirrored_gradients",
    "mirrored_loops",
    "mirrored_training",
]

if __name__ == "__main__":
    main()
