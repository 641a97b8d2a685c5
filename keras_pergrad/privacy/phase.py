"""The record of a phase of private training, by which it goes on or ends."""

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_pergrad.privacy.mechanism import Mechanism


@dataclasses.dataclass(frozen=True)
class Phase:
    """All that decides a draw, an order or a noise of private training.

    While the record stays equal, the phase goes on to the last bit. With
    another record a new phase begins: it is counted beside the phases before,
    and has draws and noise of its own.

    Attributes:
        mechanism: the numbers that epsilon depends on.
        key: of all draws, two integers of 64 bits.
        replicas: how many there are; each draws from its part of the examples.
        weights: a checksum of the shapes of the trainable weights.
        data: a checksum of the examples, in their order.
        users: a checksum of whose the examples are; "" without users.
        augment: a checksum of the ops that make views; "" without views.

    The last five are None until a `fit` begins.
    """

    mechanism: Mechanism
    key: tuple[int, int]
    replicas: int | None = None
    weights: str | None = None
    data: str | None = None
    users: str | None = None
    augment: str | None = None

    def may_continue(self, other: "Phase") -> bool:
        """Whether nothing that is known here is otherwise in `other`."""
        mine, others = vars(self), vars(other)
        return all(mine[k] in (None, others[k]) for k in mine)

    def to_dict(self) -> dict[str, Any]:
        """Return what `from_dict` takes, for JSON."""
        # Integers of 64 bits are text, since others read JSON as floats.
        key = [str(word) for word in self.key]
        own = {"key": key, "mechanism": self.mechanism.to_dict()}
        return {**dataclasses.asdict(self), **own}

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> "Phase":
        first, second = map(int, config["key"])
        mechanism = Mechanism.from_dict(config["mechanism"])
        own = {"key": (first, second), "mechanism": mechanism}
        return cls(**{**config, **own})


def checksum(parts: Sequence[Any]) -> str:
    """Return a text that changes if a part does: an array or what prints."""
    found = hashlib.blake2b(digest_size=16)
    for part in parts:
        is_plain = isinstance(part, np.ndarray) and part.dtype.kind not in "OUT"
        if isinstance(part, np.ndarray):
            found.update(f"{part.dtype} {part.shape}".encode())
        if is_plain:
            flat = np.ascontiguousarray(part).reshape(-1)
            found.update(flat.view("uint8").data)
        else:
            text = part.tolist() if isinstance(part, np.ndarray) else part
            found.update(repr(text).encode())
    return found.hexdigest()
