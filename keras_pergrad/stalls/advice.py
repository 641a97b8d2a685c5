"""The advice on a stall, as users get it."""

import dataclasses


@dataclasses.dataclass
class Advice:
    """One cause and the code that removes it.

    Attributes:
        name: What it is called in tests and documentation.
        cause: One or two sentences.
        code: Lines that run as they stand, given the names in them.
        gain_ms: The most time that it can save per batch, if that was
            measured; None if only trying it shows.
        is_mistake: Whether training itself differs from what was meant, or one
            line undoes the purpose of another.
    """

    name: str
    cause: str
    code: str
    gain_ms: float | None = None
    is_mistake: bool = False
