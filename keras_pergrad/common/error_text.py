"""The text of an error, without what TensorFlow and Keras wrap around it."""

import re

_MOST = 500
_WRAPPING = (
    "Exception encountered when calling",
    "Graph execution error",
    "Detected at node",
    "Detected unsupported operations when trying to compile graph",
)
# An assertion's own words, from a graph and from eager execution.
_ASSERTED = (
    r"assertion failed: \[(.+?)\]",
    r"Summarized data: b[\"'](.+?)[\"']\s*$",
)


def reason(error):
    """Return the sentence to show for an error, at most a few lines long."""
    text = getattr(error, "message", None) or str(error)
    text = re.sub(r"\x1b\[\d+m|\{\{\w+ [^}]*\}\}", "", text).strip()
    for pattern in _ASSERTED:
        match = re.search(pattern, text, re.DOTALL)
        if match:
            return match.group(1).replace("\\'", "'")[:_MOST]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith(_WRAPPING)]
    shown = (telling or lines or [type(error).__name__])[0]
    return shown[:_MOST]
