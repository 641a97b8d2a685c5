"""Findings of the doctor, one for each thing that it looked at."""

import contextlib
import dataclasses
import getpass
import pathlib
import re

OK, NOTE, WARNING, ERROR = "ok", "note", "warning", "error"
METAL_FIX = (
    'pip install "tensorflow>=2.18,<2.20" "tensorflow-metal==1.2.0" '
    "(Python 3.12 at most), or, to train on the CPU, "
    "pip uninstall tensorflow-metal"
)


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


# A folder's name may hold spaces. Where nothing ends it, too much is cut
# rather than too little.
_NAME = r"[^/\\'\":;,()<>|\n]*"
_HOMES = re.compile(
    rf"(?:[a-z]:(?:\\+|/)users(?:\\+|/)|/(?:users|home)/){_NAME}",
    re.IGNORECASE,
)
_STEP = r"[^/\\\s'\":,()]+(?: [^/\\\s'\":,()]+)*"
_FOLDERS = re.compile(rf"(?<![\w@.])~?(?:/{_STEP})+/")
_WINDOWS_FOLDERS = re.compile(rf"(?:\b[A-Za-z]:|~)\\+(?:{_STEP}\\+)*")


def without_paths(text):
    """Remove folders and this user's name from a text."""
    home, names = _whose()
    if home:
        text = re.sub(re.escape(home) + r"(?!\w)", "~", text, flags=re.I)
    text = _HOMES.sub("~", text)
    for name in names:
        whole = rf"(?<!\w){re.escape(name)}(?!\w)"
        text = re.sub(whole, "...", text, flags=re.I)
    text = _WINDOWS_FOLDERS.sub(r"...\\", text)
    return _FOLDERS.sub(".../", text)


def _whose():
    """Return this user's home, if known, and the names of home and user."""
    home, names = "", set()
    with contextlib.suppress(RuntimeError):
        folder = pathlib.Path.home()
        names.add(folder.name)
        home = str(folder) if folder.name else ""  # "/" is nobody's
    # Without a password database Python raises one of these.
    with contextlib.suppress(OSError, KeyError, ImportError):
        names.add(getpass.getuser())
    # "root" names nobody, and a single letter may be a word.
    return home, {n for n in names - {"root"} if len(n) > 1}
