"""Layers of one's own, of which the package can know nothing.

Every layer treats each sample alone, but for those in `coupled`. One class
needs nothing from its file but what `HEADER` in cases.py imports, so that
its source can stand in a script.
"""

from tests.hunt.layers.attention import Attends, Norm, Tied, Token
from tests.hunt.layers.backward import Backward
from tests.hunt.layers.base import Own
from tests.hunt.layers.coupled import Couples
from tests.hunt.layers.graphs import Inside, Nested
from tests.hunt.layers.kernels import Kernel, Vector
from tests.hunt.layers.losses import AddsLoss
from tests.hunt.layers.meets import Added, Broadcast, Looked, Meets, Scalar
from tests.hunt.layers.mixtures import Gate, Mixture, Squeeze
from tests.hunt.layers.outputs import Join, Two
from tests.hunt.layers.products import Filters, Matrix, Positions
from tests.hunt.layers.recurrence import Loop, OverSamples, Steps
from tests.hunt.layers.state import Keeps, Penalised, Unused

__all__ = [
    "Added",
    "AddsLoss",
    "Attends",
    "Backward",
    "Broadcast",
    "Couples",
    "Filters",
    "Gate",
    "Inside",
    "Join",
    "Keeps",
    "Kernel",
    "Looked",
    "Loop",
    "Matrix",
    "Meets",
    "Mixture",
    "Nested",
    "Norm",
    "OverSamples",
    "Own",
    "Penalised",
    "Positions",
    "Scalar",
    "Squeeze",
    "Steps",
    "Tied",
    "Token",
    "Two",
    "Unused",
    "Vector",
]
