"""Tiers of tests: every file in the quick one, the others by price."""

import pathlib

from tests import tiers

HERE = pathlib.Path(__file__).parent
PRICES = {
    "a.py": {"test_cheap": 1.0, "test_dear": 400.0},
    "b.py": {"test_only": 90.0},
    "c.py": {"test_x": 0.5, "test_y": 200.0, "test_z": 1300.0},
    "d.py": {"test_cheap_too": 0.1, "test_killer": 20.0},
}


class Item:
    """As much of a test as the tiers look at."""

    def __init__(self, file, name, mark=None):
        self.nodeid, self.name, self.path = f"{file}::{name}", name, HERE / file
        self._mark = mark

    def get_closest_marker(self, mark):
        return mark if mark == self._mark else None


def test_each_file_is_in_the_quick_tier_and_the_budget_is_kept():
    items = [Item(f, name) for f, known in PRICES.items() for name in known]
    items[-1]._mark = "quick"
    items.append(Item("b.py", "test_marked", "slow"))
    found = tiers.tier_of(items, PRICES)
    by_tier, cheap = {}, {"test_cheap", "test_cheap_too", "test_x"}
    for item in items:
        by_tier.setdefault(found[item], set()).add(item.name)
    assert by_tier == {
        # b.py's only test, though it is dear, and one that is marked; then by
        # price, up to 420 s.
        "quick": {"test_only", "test_killer", *cheap, "test_y"},
        "rest": {"test_dear"},
        "weekly": {"test_z", "test_marked"},
    }


def test_a_test_without_a_price_costs_its_files_mean():
    assert tiers.price(Item("a.py", "test_new"), PRICES) == 200.5
    assert tiers.price(Item("e.py", "test_new"), PRICES) == tiers.UNKNOWN
