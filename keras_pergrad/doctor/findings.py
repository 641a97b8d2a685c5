"""What the doctor says about one thing."""

import dataclasses
import re

OK, NOTE, WARNING, ERROR = "ok", "note", "warning", "error"


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of the doctor's screen.

    Attributes:
        level: `"ok"`, `"note"`, `"warning"` or `"error"`.
        subject: what it is about.
        message: what was found.
        fix: what to do, or `""`.
    """

    level: str
    subject: str
    message: str
    fix: str = ""


def without_paths(text):
    """Cuts folders off, so that a report shows no user's name."""
    text = re.sub(r"[A-Za-z]:\\(?:[^\\\s'\"]+\\)+", r"...\\", text)
    return re.sub(r"(?<![\w@.])~?(?:/[^/\s'\":,()]+)+/", ".../", text)
