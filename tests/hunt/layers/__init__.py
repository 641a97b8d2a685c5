"""Layers of one's own, of which the package can know nothing.

Every layer treats each sample alone, but for those in `coupled`. One class
needs nothing from its file but what `HEADER` in cases.py imports, so that
its source can stand in a script.
"""

from tests.hunt.layers.attention import *
from tests.hunt.layers.backward import *
from tests.hunt.layers.base import *
from tests.hunt.layers.coupled import *
from tests.hunt.layers.graphs import *
from tests.hunt.layers.kernels import *
from tests.hunt.layers.losses import *
from tests.hunt.layers.meets import *
from tests.hunt.layers.mixtures import *
from tests.hunt.layers.outputs import *
from tests.hunt.layers.products import *
from tests.hunt.layers.recurrence import *
from tests.hunt.layers.state import *
