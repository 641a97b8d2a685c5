"""The proof of the hunt: python -m tests.hunt.proof plants faults.

A fault counts as found by a draw that fails with it and not without.
"""

import argparse
import contextlib
import sys

from tests.hunt import workers

#: Draws of one process at a time; what is found is not looked for again.
CHUNK = 10


def main():
    parser = argparse.ArgumentParser(
        prog="python -m tests.hunt.proof",
        description="After how many draws is each planted fault found?",
    )
    parser.add_argument("--most", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    found = prove(arguments.seed, arguments.most, arguments.workers)
    missing = [name for name, index in found.items() if index is None]
    sys.exit(bool(missing))


def prove(seed, most, processes):
    """Looks for every fault.

    Returns:
        A dict: name of the fault to the first draw that finds it, or None.
    """
    from tests.hunt.faults import FAULTS

    found = {fault.name: None for fault in FAULTS}
    start = 0
    while start < most and None in found.values():
        names = [name for name, index in found.items() if index is None]
        jobs = []
        for _ in range(processes):
            indices = range(start, min(start + CHUNK, most))
            start = indices.stop
            jobs.append((seed, indices, names))
        for part in workers.spread(search, jobs, processes):
            for name, index in part.items():
                before = found[name]
                found[name] = index if before is None else min(before, index)
        for name in names:
            if found[name] is not None:
                print(f"{name}: after {found[name] + 1} draws", flush=True)
        left = [name for name, index in found.items() if index is None]
        print(f"{start} draws; not found: {left}", flush=True)
    return found


def search(seed, indices, names):
    """The first of the draws that finds each fault, of those that do.

    A draw is tried with a fault only if it calls the faulty function.
    """
    from tests.hunt import cases, judge
    from tests.hunt.faults import FAULTS

    looked_for = {f.name: f for f in FAULTS if f.name in names}
    found = {}
    for index in indices:
        case, touched = cases.draw(seed, index), set()
        with contextlib.ExitStack() as stack:
            for fault in looked_for.values():
                stack.enter_context(fault.watched(touched))
            verdicts = judge.judge(case)
        if any(v.failed for v in verdicts):
            continue
        for name in sorted(touched):
            with looked_for[name].planted():
                if any(v.failed for v in judge.judge(case)):
                    found[name] = index
                    del looked_for[name]
    return found


if __name__ == "__main__":
    main()
