"""The proof that an example's gradient is its own, as far as there is one."""

import dataclasses
from collections.abc import Sequence
from typing import Any

CLAIM = "each example's clipped gradient depends on that example alone"


@dataclasses.dataclass(frozen=True)
class ProofRecord:
    """How far it is proved that examples stay separate, in all `fit`s so far.

    Attributes:
        ops: the numbers of ops of the steps that were proved.
        count: how many of them the user vouches for.
        kinds: the types of these ops.
        names: what `compile(vouched=...)` named.
        known: whether each `fit` has left its proof.
    """

    ops: tuple[int, ...] = ()
    count: int = 0
    kinds: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    known: bool = True

    @classmethod
    def from_record(
        cls, record: dict[str, Any] | None, begun: bool
    ) -> "ProofRecord":
        """Read what `to_dict` wrote; None is of an earlier version."""
        if record is None:
            return cls(known=not begun)
        tuples = {k: tuple(record[k]) for k in ("ops", "kinds", "names")}
        return cls(**{**record, **tuples})

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dict, for JSON."""
        return dataclasses.asdict(self)

    def merged_with(self, other: "ProofRecord") -> "ProofRecord":
        """Return the record of both together."""

        def union(field):
            both = {*getattr(self, field), *getattr(other, field)}
            return tuple(sorted(both))

        return ProofRecord(
            **{name: union(name) for name in ("ops", "kinds", "names")},
            count=max(self.count, other.count),
            known=self.known and other.known,
        )

    def in_words(self, names: Sequence[str] = ()) -> str:
        """Say it without a full stop; `names` are those to be vouched for."""
        if not self.known:
            return (
                f"Whether {CLAIM} was not recorded by the version that "
                "trained the model"
            )
        if not self.ops:
            exclusion = (
                f" except what you vouch for: {_format_names(names)}"
                if names
                else ""
            )
            return (
                f"{CLAIM[0].upper()}{CLAIM[1:]}: this will be proved for all "
                f"ops of the step before training begins{exclusion}"
            )
        number = " or ".join(map(str, self.ops))
        text = f"{CLAIM[0].upper()}{CLAIM[1:]}: proved for all {number} ops"
        if not self.count:
            return f"{text} of the step"
        return (
            f"{text} of the step except {self.count} "
            f"({', '.join(self.kinds)}), for which the user vouches by name: "
            f"compile(vouched={_format_names(self.names)})"
        )


def _format_names(names):
    return f"[{', '.join(map(repr, names))}]"
