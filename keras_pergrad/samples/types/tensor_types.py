"""The types of tensors: how each entry depends on the samples of a batch.

| type | the tensor |
|---|---|
| `Free` | does not depend on the batch's values: weights, constants, draws |
| `At` | has the samples on an axis; what is at sample i depends on i alone |
| `Total` | is a sum over the samples, linear in what each one adds |
| `Divisor` | is a number made of sums of masks and sample weights |
| `Mixed` | is none of these: samples are mixed, or an op has no rule |
"""

import dataclasses

from keras_pergrad.samples.messages import UNEQUAL

#: What entries depend on besides their own sample, and how.
TRAINED = 1  # on trainable weights
VALUES = 2  # on values of the batch, not only on masks and sample weights
DIVIDED = 4  # on sums of the masks or weights of all samples, as factors
BY_SIZE = 8  # on the number of samples, or on the sample's place
#: The axis of a list with one tensor for each sample.
OF_LIST = -1


@dataclasses.dataclass(frozen=True)
class Free:
    """A tensor that does not depend on the batch's values.

    Attributes:
        flags: `TRAINED` and `BY_SIZE`, where they hold.

    Example:

    >>> from keras_pergrad import types
    >>> types.Free()  # a constant of the program
    Free(flags=0)
    """

    flags: int = 0

    def flagged(self, flags):
        """Return the type with these flags, too."""
        return Free(self.flags | flags)


@dataclasses.dataclass(frozen=True)
class At:
    """A tensor with the samples on an axis, each entry of one sample.

    The axis may be merged with positions: it has `lead` blocks, each with all
    samples in order, each sample as `rows` entries one after the other.

    Attributes:
        axis: the axis.
        rows: how many entries a sample has in a row.
        lead: how many times all samples come, one after the other.
        flags: what else the entries depend on.
        factor: the sums by which the forward pass has multiplied all entries,
            see `divisors`; None: that of a loss, which is settled.

    Example:

    >>> from keras_pergrad import types
    >>> types.At(0)  # (n, ...): the samples on the first axis
    At(axis=0, rows=1, lead=1, flags=2)
    >>> types.At(0, rows=5).rows  # (n · 5, ...): five entries of each sample
    5
    """

    axis: int
    rows: int = 1
    lead: int = 1
    flags: int = VALUES
    factor: tuple | None = dataclasses.field(default=(), repr=False)

    @classmethod
    def placed(cls, place, flags):
        """Return the type of a `place`."""
        axis, rows, lead = place
        return cls(axis, rows, lead, flags)

    def on(self, axis):
        """Return the type with the samples on another axis."""
        return dataclasses.replace(self, axis=axis)

    def flagged(self, flags):
        """Return the type with these flags, too."""
        return dataclasses.replace(self, flags=self.flags | flags)

    @property
    def place(self):
        """Where the samples are, as a tuple to compare."""
        return self.axis, self.rows, self.lead


@dataclasses.dataclass(frozen=True)
class Total:
    """A sum over the samples, linear in each one's part.

    The loss is one.

    Attributes:
        flags: what else its entries depend on.
        factor: as of `At`.

    Example:

    >>> from keras_pergrad import types
    >>> isinstance(types.Total(), types.Free)
    False
    """

    flags: int = VALUES
    factor: tuple | None = dataclasses.field(default=(), repr=False)

    def flagged(self, flags):
        """Return the type with these flags, too."""
        return dataclasses.replace(self, flags=self.flags | flags)


@dataclasses.dataclass(frozen=True)
class Divisor:
    """A number that follows sums of masks and sample weights.

    A loss may be divided by it.

    Attributes:
        flags: what else it depends on.

    Example:

    >>> from keras_pergrad import types
    >>> isinstance(types.Divisor(), types.At)
    False
    """

    flags: int = DIVIDED

    def flagged(self, flags):
        """Return the type with these flags, too."""
        return Divisor(self.flags | flags)


@dataclasses.dataclass(frozen=True)
class Mixed:
    """A tensor in which samples are mixed, and the op where that began.

    Attributes:
        op_type, op_name: of that op.
        why: the reason, to follow "the op …".
        untyped: whether the op has no rule, so that nothing is known.
    """

    op_type: str
    op_name: str
    why: str
    untyped: bool = False

    flags = VALUES

    def flagged(self, flags):
        """Return itself: nothing else matters."""
        del flags
        return self


class Mixes(Exception):
    """Raised by a type rule: the op mixes the samples.

    Its text follows "the op ... which".

    Example:

    >>> from keras_pergrad import types
    >>> def rule(op, kinds):
    ...     raise types.Mixes("sorts the samples")
    """


class Untyped(Exception):
    """Raised by a type rule: it does not know what the op does here.

    Example:

    >>> from keras_pergrad import types
    >>> def rule(op, kinds):
    ...     if not isinstance(kinds[0], types.At):
    ...         raise types.Untyped("is not given the samples")
    ...     return kinds[0]
    """


FREE = Free()


def flags_of(types):
    """Return the flags of several types together."""
    flags = 0
    for one in types:
        flags |= one.flags
    return flags


def settled(kind):
    """Return the type of a whole loss: others may have other factors."""
    if not isinstance(kind, (At, Total)):
        return kind
    return dataclasses.replace(kind, factor=None)


def joined(a, b):
    """Return the type of what is one or the other: of branches, of turns.

    Raises:
        Mixes: the samples are on different axes, or multiplied by different
            sums over all of them.
    """
    if a == b:
        return a
    if isinstance(a, Mixed) or isinstance(b, Mixed):
        return a if isinstance(a, Mixed) else b
    flags = a.flags | b.flags
    if isinstance(a, Free) and isinstance(b, Free):
        return Free(flags)
    if isinstance(a, Free):
        return b.flagged(flags)
    if isinstance(b, Free):
        return a.flagged(flags)
    if type(a) is type(b):
        if getattr(a, "factor", ()) != getattr(b, "factor", ()):
            raise Mixes(UNEQUAL)
        if not isinstance(a, At) or a.place == b.place:
            return a.flagged(flags)
    raise Mixes("gives samples on one axis or on another")


def joined_or_mixed(op, a, b):
    """Return the joined type, or a `Mixed` that says why there is none."""
    try:
        return joined(a, b)
    except Mixes as error:
        return Mixed(op.type, op.name, str(error))
