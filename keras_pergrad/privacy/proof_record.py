"""The proof that an example's gradient is its own, as far as there is one."""

import dataclasses

ALONE = "each example's clipped gradient depends on that example alone"


@dataclasses.dataclass(frozen=True)
class ProofRecord:
    """How far it is proved that examples are apart, in all `fit`s so far.

    Attributes:
        ops: the numbers of ops of the steps that were proved.
        count: how many of them the user vouches for.
        kinds: the types of these ops.
        names: what `compile(vouched=...)` named.
        known: whether each `fit` has left its proof.
    """

    ops: tuple = ()
    count: int = 0
    kinds: tuple = ()
    names: tuple = ()
    known: bool = True

    @classmethod
    def of_record(cls, record, begun):
        """Return it from what `to_dict` gave; None: an earlier version."""
        if record is None:
            return cls(known=not begun)
        return cls(
            tuple(record["ops"]),
            record["count"],
            tuple(record["kinds"]),
            tuple(record["names"]),
            record["known"],
        )

    def to_dict(self):
        """Return it for JSON."""
        return dataclasses.asdict(self)

    def and_of(self, other):
        """Return both together."""

        def union(name):
            both = {*getattr(self, name), *getattr(other, name)}
            return tuple(sorted(both))

        return ProofRecord(
            union("ops"),
            max(self.count, other.count),
            union("kinds"),
            union("names"),
            self.known and other.known,
        )

    def in_words(self, names=()):
        """Return a sentence without its end; `names` are vouched for next."""
        if not self.known:
            return (
                f"Whether {ALONE} was not recorded by the version that "
                "trained the model"
            )
        if not self.ops:
            what = f" but what you vouch for: {_listed(names)}" if names else ""
            return (
                f"{ALONE[0].upper()}{ALONE[1:]}: this will be proved for all "
                f"ops of the step before training begins{what}"
            )
        number = " or ".join(map(str, self.ops))
        text = f"{ALONE[0].upper()}{ALONE[1:]}: proved for all {number} ops"
        if not self.count:
            return f"{text} of the step"
        return (
            f"{text} of the step but {self.count} ({', '.join(self.kinds)}), "
            "for which the user vouches by name: "
            f"compile(vouched={_listed(self.names)})"
        )


def _listed(names):
    return f"[{', '.join(map(repr, names))}]"
