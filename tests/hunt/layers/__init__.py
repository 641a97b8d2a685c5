"""Layers of one's own, of which the package can know nothing.

Every layer treats each sample alone, but for those of `TOGETHER`; `Sized`
follows the number of samples, too. One class
needs nothing from its file but what `HEADER` in cases.py imports, so that
its source can stand in a script.
"""

from tests.hunt.layers.again import Again, AgainComplex, AgainDerived
from tests.hunt.layers.attention import Attends, Norm, Tied, Token
from tests.hunt.layers.backward import Backward
from tests.hunt.layers.base import Own
from tests.hunt.layers.branches import Chooses, ChoosesTogether
from tests.hunt.layers.coupled import Couples, Stops
from tests.hunt.layers.graphs import Inside, Nested
from tests.hunt.layers.ids import IdsTogether, Numbers, Words
from tests.hunt.layers.kept import KeepsTogether
from tests.hunt.layers.kernels import Kernel, Vector
from tests.hunt.layers.loops import Turns, TurnsTogether
from tests.hunt.layers.losses import AddsLoss
from tests.hunt.layers.meets import Added, Broadcast, Looked, Meets, Scalar
from tests.hunt.layers.mixtures import Gate, Mixture, Squeeze
from tests.hunt.layers.outputs import Join, Two
from tests.hunt.layers.own_gradients import Derives, DerivesTogether
from tests.hunt.layers.places import Lies, LiesTogether
from tests.hunt.layers.products import Filters, Matrix, Positions
from tests.hunt.layers.recurrence import Loop, OverSamples, Steps
from tests.hunt.layers.sizes import Sized
from tests.hunt.layers.state import Keeps, Penalised, Unused

#: The layers in which samples meet.
TOGETHER = (
    Couples,
    ChoosesTogether,
    DerivesTogether,
    IdsTogether,
    KeepsTogether,
    LiesTogether,
    TurnsTogether,
)

__all__ = [
    "TOGETHER",
    "Added",
    "AddsLoss",
    "Again",
    "AgainComplex",
    "AgainDerived",
    "Attends",
    "Backward",
    "Broadcast",
    "Chooses",
    "ChoosesTogether",
    "Couples",
    "Derives",
    "DerivesTogether",
    "Filters",
    "Gate",
    "IdsTogether",
    "Inside",
    "Join",
    "Keeps",
    "KeepsTogether",
    "Kernel",
    "Lies",
    "LiesTogether",
    "Looked",
    "Loop",
    "Matrix",
    "Meets",
    "Mixture",
    "Nested",
    "Norm",
    "Numbers",
    "OverSamples",
    "Own",
    "Penalised",
    "Positions",
    "Scalar",
    "Sized",
    "Squeeze",
    "Steps",
    "Stops",
    "Tied",
    "Token",
    "Turns",
    "TurnsTogether",
    "Two",
    "Unused",
    "Vector",
    "Words",
]
