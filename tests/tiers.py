"""Tests chosen by their measured price: `--tier quick`, `rest` or `weekly`.

The quick tier takes what fits into its processor seconds: first the tests
marked quick, without which mutants survive (see `mutants.py`) or parts of the
package do not run, and the cheapest test of every file and of every public
name, then the others by price. The rest takes the cheapest of what that leaves
out, and weekly is all that both leave out, with the tests marked slow. They
are the same on every machine.

The prices stand in `prices.json`, in processor seconds for each function,
the mean over its parameters; `make prices` measures them. A function with no
price costs as much as its file's mean.
"""

import functools
import inspect
import json
import os
import pathlib
import re
import resource
import time

import pytest

#: Processor seconds of a tier. To start two processes, to collect the tests and
#: to wait for the last file takes more than a minute beside these.
BUDGETS = {"quick": 420.0, "rest": 1500.0}
PRICES = pathlib.Path(__file__).with_name("prices.json")
#: The price of a test in a file of which nothing is known.
UNKNOWN = 5.0
_HERE = pathlib.Path(__file__).parent
_PUBLIC = re.compile(r"\bkpg((?:\.\w+)+)")


class Tier:
    """The tests of a tier alone, with a line on what it leaves out."""

    def __init__(self, name):
        self.name = name
        self.left = None

    @pytest.hookimpl(trylast=True)  # What `-m` leaves.
    def pytest_collection_modifyitems(self, config, items):
        prices = json.loads(PRICES.read_text())
        tiers = tier_of(items, prices)
        left = [item for item in items if tiers[item] != self.name]
        items[:] = [item for item in items if tiers[item] == self.name]
        config.hook.pytest_deselected(items=left)
        self.left = len(left), sum(price(item, prices) for item in left)

    def pytest_sessionfinish(self, session):
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["left"] = self.left

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        self.left = getattr(node, "workeroutput", {}).get("left", self.left)

    def pytest_terminal_summary(self, terminalreporter):
        if self.left and self.name == "quick":
            count, seconds = self.left
            terminalreporter.write_line(
                f"{count} tests of about {seconds / 60:.0f} processor minutes "
                "are left to `make test TIER=rest` and `TIER=weekly`."
            )


def tier_of(items, prices):
    """Return test → "quick", "rest" or "weekly"."""
    costs = {item: price(item, prices) for item in items}
    fast = [item for item in items if item.get_closest_marker("slow") is None]
    by_cost = sorted(fast, key=lambda item: (costs[item], item.nodeid))
    tiers, covered = dict.fromkeys(items, "weekly"), set()
    for item in by_cost:
        if tags(item) - covered or item.get_closest_marker("quick"):
            covered |= tags(item)
            tiers[item] = "quick"
    left = dict(BUDGETS)
    left["quick"] -= sum(costs[i] for i in fast if tiers[i] == "quick")
    for item in by_cost:
        for name in BUDGETS if tiers[item] == "weekly" else ():
            if costs[item] <= left[name]:
                left[name] -= costs[item]
                tiers[item] = name
                break
    return tiers


def price(item, prices):
    """Return the processor seconds of a test."""
    known = prices.get(_file(item), {})
    mean = sum(known.values()) / len(known) if known else UNKNOWN
    return known.get(_function(item), mean)


def tags(item):
    """Return what a test stands for: its file, the public names it uses."""
    return {_file(item), *_public_names(getattr(item, "function", None))}


@functools.cache
def _public_names(function):
    try:
        return set(_PUBLIC.findall(inspect.getsource(function)))
    except (OSError, TypeError):
        return set()


def _file(item):
    path = item.path
    return path.relative_to(
        _HERE if _HERE in path.parents else _HERE.parent
    ).as_posix()


def _function(item):
    return getattr(item, "originalname", None) or item.name


class Meter:
    """The processor seconds of each test, with those of its processes."""

    def __init__(self, path):
        worker = os.environ.get("PYTEST_XDIST_WORKER", "")
        self.path = pathlib.Path(f"{path}{worker}")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        before = _processor_seconds()
        result = yield
        used = _processor_seconds() - before
        # A run that is broken off keeps what it has measured.
        with self.path.open("a") as lines:
            row = [_file(item), _function(item), used]
            lines.write(json.dumps(row) + "\n")
        return result


def _processor_seconds():
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def collect(paths):
    """Write `prices.json` from the files of `--prices`, a file a worker."""
    together = {}
    for path in paths:
        for line in pathlib.Path(path).read_text().splitlines():
            file, name, used = json.loads(line)
            known = together.setdefault(file, {}).setdefault(name, [])
            known.append(used)
    means = {
        file: {
            name: round(sum(used) / len(used), 2)
            for name, used in sorted(functions.items())
        }
        for file, functions in sorted(together.items())
    }
    PRICES.write_text(json.dumps(means, indent=1) + "\n")


if __name__ == "__main__":
    import sys

    collect(sys.argv[1:])
