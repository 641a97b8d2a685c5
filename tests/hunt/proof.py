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
    parser.add_argument(
        "--part",
        type=_part,
        metavar="K/N",
        default="1/1",
        help="the faults K, K + N, K + 2N and so on, so that parts take turns",
    )
    arguments = parser.parse_args()
    found = prove(
        seed=arguments.seed,
        most=arguments.most,
        processes=arguments.workers,
        part=arguments.part,
    )
    missing = [name for name, index in found.items() if index is None]
    sys.exit(bool(missing))


def _part(text):
    """Return the part of a list of which a text tells."""
    first, _, step = text.partition("/")
    if not 1 <= int(first) <= int(step):
        raise ValueError
    return slice(int(first) - 1, None, int(step))


def prove(seed, most, processes, part=slice(None)):
    """Looks for every fault, or for a part of the faults.

    Returns:
        A dict: name of the fault to the first draw that finds it, or None.
    """
    from tests.hunt.faults import FAULTS

    found = {fault.name: None for fault in FAULTS[part]}
    start = 0
    while start < most and None in found.values():
        names = [name for name, index in found.items() if index is None]
        jobs = []
        for _ in range(processes):
            indices = range(start, min(start + CHUNK, most))
            start = indices.stop
            jobs.append((seed, indices, names))
        for firsts in workers.spread(search, jobs, processes):
            for name, index in firsts.items():
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
