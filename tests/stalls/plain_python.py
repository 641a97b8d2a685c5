"""A function that computes in Python, which imports nothing slow.

The processes of an advice import it again.
"""


def compute(i):
    """Computes for some milliseconds, whatever `i` is."""
    total = 0
    for number in range(300_000):
        total += number & 7
    return i + 0 * total
