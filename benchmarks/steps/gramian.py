"""Steps of Gramian aggregations: beside the clipped one, and TorchJD's.

    make bench-venvs PEERS=torchjd
    python -m benchmarks.steps.gramian [--rounds 12] [--models mnist,lstm]
        [--write]

One step of `fit` at batch 64 for each aggregation, the clipped step, and
TorchJD 0.18's step with its aggregator of the same name: all from the same
weights on the same batch, in turns in one run. TorchJD runs with one thread
and with two: the faster one counts, for two are slow on a busy machine. What
TorchJD's first update is apart from ours is told, too; that of PCGrad is n
times as large, in an order of its own.
With `--write` the rows of these models are replaced between the marks of
benchmarks/results/multitask.md, where they have the same columns.
"""

import argparse
import statistics

from benchmarks.harness import tables
from benchmarks.harness.models import STANDARD
from benchmarks.harness.process import THREADS, Worker, WorkerError
from benchmarks.harness.rivals import CLIPPED

OURS = (
    "upgrad",
    "mgda",
    "cagrad",
    "pcgrad",
    "imtlg",
    "aligned_mtl",
    "krum",
    "geometric_median",
)
THEIRS = OURS[:-1]
BATCH = 64
PLACE = "multitask.md#gramian"
#: A request may take as long, in seconds: a Jacobian of an LSTM is slow.
LIMIT = 300


def jobs(names):
    """Return (framework, rival, name) of all steps."""
    ours = [("tensorflow", f"gramian_{name}", name) for name in names]
    theirs = [
        ("torchjd", f"{name}@{threads}", f"{name}@{threads}")
        for name in names
        if name in THEIRS
        for threads in (1, THREADS)
    ]
    return [("tensorflow", "ours", "clipped"), *ours, *theirs]


def prepared(model, names, workers):
    """Return key → (worker, norms of the first update) of steps that run."""
    ready = {}
    for framework, rival, name in jobs(names):
        key = f"{framework} {name}"
        asked = {"rival": rival, "model": model, "task": CLIPPED}
        try:
            worker = workers[framework]
            reply = worker.ask("prepare", key=key, batch=BATCH, **asked)
            ready[key] = worker, reply["norms"]
        except WorkerError as error:
            print(f"  {model}, {key}: {error}", flush=True)
    return ready


def times(ready, rounds):
    """Return key → milliseconds of each round."""
    found = {key: [] for key in ready}
    keys = list(ready)
    for turn in range(rounds):
        shift = turn % len(keys)
        for key in keys[shift:] + keys[:shift]:
            slow = found[key] and found[key][0] > 1000
            if slow and turn % 4:
                continue
            found[key].append(ready[key][0].ask("time", key=key)["ms"])
    return {key: statistics.median(numbers) for key, numbers in found.items()}


def row(model, names, workers, *, rounds):
    """Return the cells of a model: one for the clipped step and each name."""
    ready = prepared(model, names, workers)
    found = times(ready, rounds)
    clipped = found["tensorflow clipped"]
    cells = [f"{clipped:.3g}"]
    for name in names:
        ours = found.get(f"tensorflow {name}")
        theirs = [found.get(f"torchjd {name}@{k}") for k in (1, THREADS)]
        theirs = min((t for t in theirs if t is not None), default=None)
        if ours is None:
            cells.append("–")
            continue
        cell = f"{ours:.3g} ({ours / clipped:.2f}×"
        if theirs is not None:
            cell += f", {ours / theirs:.2f} of {theirs:.3g}"
            apart = difference(ready, name)
            print(f"  {model}, {name}: updates {apart:.0e} apart", flush=True)
        cells.append(cell + ")")
    return cells


def difference(ready, name):
    """Return how far the norms of both first updates are apart, relatively."""
    keys = f"tensorflow {name}", f"torchjd {name}@1"
    ours, theirs = (ready[key][1] for key in keys)
    if len(ours) != len(theirs):  # torch has two biases in an LSTM
        return float("nan")
    largest = max(ours)
    return max(abs(a - b) for a, b in zip(ours, theirs)) / largest


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(STANDARD))
    parser.add_argument("--aggregations", default=",".join(OURS))
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    names = given.aggregations.split(",")
    header = f"| | clipped, ms | {' | '.join(names)} |\n"
    header += "|---" * (len(names) + 2) + "|"
    lines = []
    for model in given.models.split(","):
        workers = {"tensorflow": Worker("tensorflow", limit=LIMIT)}
        try:
            workers["torchjd"] = Worker("torchjd", limit=LIMIT)
        except WorkerError as error:
            print(f"TorchJD: {error}")
            workers["torchjd"] = _Missing()
        try:
            cells = row(model, names, workers, rounds=given.rounds)
        finally:
            for worker in workers.values():
                worker.close()
        lines.append(f"| {model} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    if given.write:
        tables.write_rows(PLACE, header, lines)


class _Missing:
    """A worker whose environment is not installed."""

    def ask(self, *_, **__):
        raise WorkerError("not installed (see `make bench-venvs`)")

    def close(self):
        pass


if __name__ == "__main__":
    main()
