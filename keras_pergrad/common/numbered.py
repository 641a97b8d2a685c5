"""Data in which each sample has a number, and the same without it."""

_NUMBERS, _X = "keras_pergrad_numbers", "x"


def with_numbers(x, numbers):
    """Return the inputs with the number of each sample beside them."""
    return {_NUMBERS: numbers, _X: x}


def is_numbered(x):
    """Whether inputs have numbers beside them."""
    return isinstance(x, dict) and set(x) == {_NUMBERS, _X}


def parted(x):
    """Return the inputs as the model takes them, and the numbers or None."""
    return (x[_X], x[_NUMBERS]) if is_numbered(x) else (x, None)


def unnumbered(batch):
    """Return a batch (x, ...) or x with the inputs as the model takes them."""
    if isinstance(batch, (tuple, list)) and batch and is_numbered(batch[0]):
        return (parted(batch[0])[0], *batch[1:])
    return parted(batch)[0]
