"""The line of the user's own code that made an op."""

import linecache
import os
import sysconfig

import keras
import tensorflow as tf

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
#: Beginnings of the paths of code that no user has written (keras_hub, too).
_LIBRARIES = (
    os.path.dirname(os.path.abspath(tf.__file__)) + os.sep,
    os.path.dirname(os.path.abspath(keras.__file__)),
    sysconfig.get_paths()["stdlib"] + os.sep,
)


def source_line(graph, name):
    """Return "file, line n: code" of what made an op, or None.

    It is the innermost line that is in no library, if this package has called
    it: not the one that calls `fit`, or a function of the package.

    Args:
        graph: the graph of the op.
        name: the op's name, behind those of the calls that it is in.
    """
    op = _find_op(graph, name)
    frames = [] if op is None else list(op.traceback)
    for k, frame in reversed(list(enumerate(frames))):
        if frame.filename.startswith(_HERE):
            return None
        if not os.path.abspath(frame.filename).startswith(_LIBRARIES):
            is_called = any(f.filename.startswith(_HERE) for f in frames[:k])
            return _text(frame) if is_called else None
    return None


def _find_op(graph, name):
    """Return the op of a name, or the outermost call around it, or None."""
    parts = name.rstrip("/").split("/")
    for k in range(len(parts), 0, -1):
        try:
            return graph.get_operation_by_name("/".join(parts[:k]))
        except (KeyError, ValueError):
            continue
    return None


def _text(frame):
    code = linecache.getline(frame.filename, frame.lineno).strip()
    place = f"{frame.filename}, line {frame.lineno}"
    return f"{place}: {code}" if code else place
