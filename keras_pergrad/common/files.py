"""Files that are whole or not there."""

import os
import tempfile


def write_atomically(path, write):
    """Write a file beside its place and move it: nobody sees half of it."""
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        with open(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
