"""All rivals in one run, taking turns, so that drift hits them all alike."""

import contextlib

from benchmarks.harness.process import LIMIT, Worker, WorkerError
from benchmarks.harness.rivals import RIVALS

#: Steps that take longer sit out two rounds of three.
SLOW_MS = 250


class Entry:
    """One rival on one model and batch size, in this run.

    Attributes:
        key: what it is called in requests and results.
        times: milliseconds by round; None for a round it sat out.
        norms: the description of its result, for the comparison.
        error: why there are no times, if there are none.
    """

    def __init__(self, rival, model, task, *, batch):
        self.key = f"{rival}@{batch}"
        self.rival = RIVALS[rival]
        self.request = {
            "rival": rival,
            "model": model,
            "task": task,
            "batch": batch,
        }
        self.times = []
        self.norms = None
        self.error = self.rival.skip.get(model)

    @property
    def process(self):
        return self.rival.framework, self.rival.process


def run(entries, rounds, log=print, *, limit=LIMIT, slow_ms=SLOW_MS):
    """Measures all entries in turn, `rounds` times; fills them in.

    Args:
        entries: what to measure.
        rounds: turns of each.
        log: takes a line of progress.
        limit: seconds that a request may take.
        slow_ms: steps that take longer sit out; None: nobody does.
    """
    with contextlib.ExitStack() as stack:
        workers = _prepare(entries, stack, log, limit=limit)
        for turn in range(rounds):
            # Another neighbour each round.
            shift = turn % max(len(entries), 1)
            for entry in entries[shift:] + entries[:shift]:
                if entry.error is None:
                    _take_turn(
                        entry, turn, workers[entry.process], slow_ms=slow_ms
                    )


def _prepare(entries, stack, log, *, limit):
    """Starts one worker a process name, each with its rivals prepared."""
    groups = {}
    for entry in entries:
        if entry.error is None:
            groups.setdefault(entry.process, []).append(entry)
    return {
        process: _start(process, group, stack, log=log, limit=limit)
        for process, group in groups.items()
    }


def _start(process, entries, stack, *, log, limit):
    """A worker with every entry prepared that does not kill it."""
    while True:
        pending = [e for e in entries if e.error is None]
        worker = None
        try:
            onednn = process[1] != "eigen"
            worker = Worker(process[0], onednn, limit)
            for entry in pending:
                _prepare_one(entry, worker, log)
            stack.callback(worker.close)
            return worker
        except WorkerError as error:
            if worker is None:
                for entry in pending:
                    entry.error = str(error)
                return None
            worker.close()


def _prepare_one(entry, worker, log):
    try:
        reply = worker.ask("prepare", key=entry.key, **entry.request)
        entry.norms = reply["norms"]
        log(f"  {entry.key}: ready after {reply['first_ms'] / 1e3:.1f} s")
    except WorkerError as error:
        entry.error = str(error)
        log(f"  {entry.key}: {error}")
        if error.fatal:
            raise


def _take_turn(entry, turn, worker, *, slow_ms):
    slow = slow_ms and entry.times and entry.times[0] > slow_ms
    if slow and turn % 3:
        entry.times.append(None)
        return
    try:
        entry.times.append(worker.ask("time", key=entry.key)["ms"])
    except WorkerError as error:
        # A worker that is gone takes its other rivals with it: each of them
        # notes that when its turn comes.
        entry.error = str(error)
