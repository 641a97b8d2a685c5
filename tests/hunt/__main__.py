"""The command: python -m tests.hunt N --seed S."""

import argparse
import collections
import re
import sys

from tests.hunt import shrink, workers


def main():
    parser = argparse.ArgumentParser(
        prog="python -m tests.hunt",
        description="Draw random models and look for wrong gradients.",
    )
    parser.add_argument("count", type=int, nargs="?", default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the first draw")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--scripts", type=int, default=20, help="how many failures to shrink"
    )
    arguments = parser.parse_args()
    found = workers.hunt(
        arguments.seed,
        arguments.first,
        arguments.count,
        arguments.workers,
        lambda line: print(line, flush=True),
    )
    failures = report(found, arguments.seed)
    chosen = distinct(failures, arguments.scripts)
    jobs = [(arguments.seed, index) for index in chosen]
    smaller = collections.defaultdict(list)
    for index, name, text in workers.spread(
        shrink.shrunk, jobs, arguments.workers
    ):
        smaller[name].append((index, text))
    for name, items in sorted(smaller.items()):
        print(f"\n\n# ==== {name}: draws {[index for index, _ in items]}\n")
        print(min((text for _, text in items), key=len))
    sys.exit(bool(failures))


def report(found, seed):
    """Prints the counts and the failures; returns these."""
    from tests.hunt import cases, judge

    refused, served, failures, said = (collections.Counter() for _ in range(4))
    failing = []
    for index, verdicts, _ in found:
        case = cases.draw(seed, index)
        names = case.names()
        if any(v.failed for v in verdicts):
            failing.append((index, verdicts, case))
            failures.update(names)
        elif any(v.outcome == judge.REFUSED for v in verdicts):
            if not case.must_refuse:
                refused.update(names)
                details = [re.sub(r"'[^']*'", "…", v.detail) for v in verdicts]
                said.update(detail[:160] for detail in details)
        else:
            served.update(names)
        for v in verdicts:
            if v.failed:
                print(
                    f"draw {index}: {v.check} {v.outcome} {v.detail} | "
                    f"{case.mode} {case.microbatch} {case.dtype} "
                    f"{case.execution} | {case.blocks} {case.outputs}"
                )
            elif v.outcome == judge.INVALID:
                print(f"draw {index}: invalid: {v.detail}")
    print(
        f"\nNames of {len(failing)} failing draws: {failures.most_common(30)}"
    )
    for text, count in said.most_common(12):
        print(f"Refused though sound, {count} times: {text}")
    refusals = {
        name: f"{count} of {count + served[name]}"
        for name, count in refused.most_common(40)
    }
    print(f"Refused though sound, by name: {refusals}")
    spent = sum(seconds for *_, seconds in found) / max(len(found), 1)
    print(f"{workers.outcomes(found)}, {spent:.2f} s of processor time a draw")
    return failing


def distinct(failures, most):
    """The draws to shrink: of each kind of failure and name the first."""
    chosen, seen = [], set()
    for index, verdicts, case in failures:
        failed = next(v for v in verdicts if v.failed)
        names = case.names()
        keys = {(failed.check, failed.outcome, name) for name in names}
        if not keys <= seen:
            seen |= keys
            chosen.append(index)
    return chosen[:most]


if __name__ == "__main__":
    main()
