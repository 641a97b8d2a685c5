"""Attributes that are replaced for a while and always restored."""

import contextlib


@contextlib.contextmanager
def patched_attribute(target, name, value):
    """Set an instance attribute past Keras's tracking, and restore it."""
    # `vars`, not `getattr`: an attribute of the class is not the instance's,
    # and is uncovered again by a deletion.
    attributes = vars(target)
    had, old = name in attributes, attributes.get(name)
    object.__setattr__(target, name, value)
    try:
        yield
    finally:
        if had:
            object.__setattr__(target, name, old)
        else:
            object.__delattr__(target, name)
