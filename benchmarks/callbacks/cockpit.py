"""Cockpit beside our instruments: the same figures, and what they cost.

    make bench-venvs PEERS=cockpit
    python -m benchmarks.callbacks.cockpit [--write]

Cockpit 1.0 (Schneider, Dangel, Hennig, arXiv 2102.06604) is for torch. Of the
benchmark models an MLP and a CNN start from the same weights, train by the
same SGD on the same batch, again and again, and are read after each update.
Our instruments read a probe, which here is that batch.

A time is that of one measurement of all of these figures, beside the steps of
the same training without one. Both take turns: between the epochs of `fit` the
process with torch is asked for its part. With `--write` the tables between the
marks of benchmarks/results/callbacks.md are replaced.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import argparse
import statistics
import time

import keras
import numpy as np
import tensorflow as tf

from benchmarks.callbacks.gradient_variance_overhead import EPOCH, MEASURED
from benchmarks.harness import tables
from benchmarks.harness.job import LEARNING_RATE
from benchmarks.harness.keras_models import build_model, make_loss
from benchmarks.harness.models import make_batch
from benchmarks.harness.process import THREADS, Worker, WorkerError
from benchmarks.harness.turns import added
from keras_pergrad.callbacks import GradientVariance

MODELS = {
    "ffnn": "MLP (ffnn)",
    "digits": "CNN (digits)",
    "cifar10": "CNN (cifar10)",
}
# ReLUs of a deep net flip between two float32 convolutions.
DTYPES = {"ffnn": "float32", "digits": "float32", "cifar10": "float64"}
TIMED = "ffnn", "cifar10"
#: Cockpit's part of a turn: steps, and how they are watched.
WINDOW, JOBS = 4, ("plain", "idle", "measured", "every")
BATCH, UPDATES, AIM = 64, 4, 1e-5
INSTRUMENTS = (
    "norm_test",
    "inner_product_test",
    "orthogonality_test",
    "cabs",
    "snr_by_weight",
    "early_stopping",
    "update_ratio",
    "distance",
    "alpha",
)
PLACE = "callbacks.md#cockpit"


def whole(norms):
    """Return the norm over all variables, from those of each."""
    return float(np.linalg.norm(norms))


#: Row → (of our reading and loss, of Cockpit's output now and one step before).
ROWS = {
    "loss; `Loss`": (
        lambda r, loss: loss,
        lambda now, before: now["Loss"],
    ),
    "`gradient_norm`; `GradNorm`": (
        lambda r, loss: r.figures["gradient_norm"],
        lambda now, before: whole(now["GradNorm"]),
    ),
    "`norm` by variable; `GradNorm`": (
        lambda r, loss: r.by_variable["norm"],
        lambda now, before: now["GradNorm"],
    ),
    "`norm_test`; `NormTest`": (
        lambda r, loss: r.figures["gradient_norm_test"],
        lambda now, before: now["NormTest"],
    ),
    "`inner_product_test`; `InnerTest`": (
        lambda r, loss: r.figures["gradient_inner_product_test"],
        lambda now, before: now["InnerTest"],
    ),
    "`orthogonality_test`; `OrthoTest`": (
        lambda r, loss: r.figures["gradient_orthogonality_test"],
        lambda now, before: now["OrthoTest"],
    ),
    "`cabs`; `CABS`": (
        lambda r, loss: r.figures["gradient_cabs"],
        lambda now, before: now["CABS"],
    ),
    "`snr_by_weight`; `MeanGSNR`": (
        lambda r, loss: r.figures["gradient_snr_by_weight"],
        lambda now, before: now["MeanGSNR"],
    ),
    # Not near zero, where float32 has rounded the difference.
    "1 − `early_stopping`; 1 − `EarlyStopping`": (
        lambda r, loss: 1 - r.figures["gradient_early_stopping"],
        lambda now, before: 1 - now["EarlyStopping"],
    ),
    "`update_ratio`; `UpdateSize` / ‖w‖": (
        lambda r, loss: r.figures["gradient_update_ratio"],
        lambda now, before: (
            whole(before["UpdateSize"]) / whole(before["Weights"])
        ),
    ),
    "`distance`; `Distance`": (
        lambda r, loss: r.figures["gradient_distance"],
        lambda now, before: whole(now["Distance"]),
    ),
    "`distance` by variable; `Distance`": (
        lambda r, loss: r.by_variable["distance"],
        lambda now, before: now["Distance"],
    ),
    "`alpha`; `Alpha`": (
        lambda r, loss: r.figures["gradient_alpha"],
        lambda now, before: before["Alpha"],
    ),
}


def compiled(name):
    """Return a model, and its endless data and one batch of them."""
    x, y = make_batch(name, BATCH)
    model = build_model(name)
    model.compile(keras.optimizers.SGD(LEARNING_RATE), make_loss(name))
    return model, tf.data.Dataset.from_tensors((x, y)).repeat(), (x, y)


def figures(name, worker):
    """Return row → pairs (ours, Cockpit's), one for each update."""
    dtype = DTYPES[name]
    keras.config.set_floatx(dtype)
    keras.config.set_dtype_policy(dtype)
    model, data, probe = compiled(name)
    watch = GradientVariance(probe, every=1, repeats=1, instruments=INSTRUMENTS)
    model.fit(data, steps_per_epoch=UPDATES, verbose=0, callbacks=[watch])
    asked = {"model": name, "batch": BATCH, "steps": UPDATES + 1}
    theirs = worker.ask("values", dtype=dtype, **asked)["values"]
    pairs = {row: [] for row in ROWS}
    for k, reading in enumerate(watch.readings):
        for row, (own, other) in ROWS.items():
            mine = own(reading, reading.loss)
            pairs[row].append((mine, other(theirs[k + 1], theirs[k])))
    return pairs


def difference(pairs):
    """Return the largest relative difference; NaN where one is NaN."""
    ours, theirs = (np.array(side, np.float64) for side in zip(*pairs))
    return float(np.max(np.abs(ours - theirs) / np.abs(theirs)))


class Turns(keras.callbacks.Callback):
    """Lets `watched` measure after every second epoch; times all of them.

    Attributes:
        steps: seconds of a plain step, one for each epoch.
        ends: seconds from the last batch but one of an epoch to the end of
            batch `AFTER` of the next, of epochs {not watched, watched}.
        theirs: milliseconds of Cockpit's windows, by name.
    """

    AFTER = 2

    def __init__(self, watched, worker):
        super().__init__()
        self.watched, self._worker = watched, worker
        self.steps, self.ends = [], {False: [], True: []}
        self.theirs = {job: [] for job in JOBS}
        self._began = self._plain = 0.0

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch
        self.watched.every = "epoch" if epoch % 2 else 10**9

    def on_train_batch_end(self, batch, logs=None):
        now = time.perf_counter()
        if batch == self.params["steps"] - 2:
            self._plain = now
            first = self.AFTER - 1
            self.steps.append((now - self._began) / (batch - first))
        if batch != self.AFTER - 1:
            return
        if self._epoch > 2:  # the first of each kind traces
            self.ends[not self._epoch % 2].append(now - self._plain)
        if self._epoch % 2:
            for job, times in self.theirs.items():
                times.append(self._worker.ask("time", key=job)["ms"])
        self._began = time.perf_counter()


def times(name, worker, rounds, *, steps):
    """Return who → milliseconds of a plain step, and what measuring adds."""
    for job in JOBS:
        asked = {"rival": job, "model": name, "batch": BATCH, "steps": WINDOW}
        worker.ask("prepare", key=job, task="window", **asked)
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")
    model, data, probe = compiled(name)
    watch = GradientVariance(probe, repeats=1, instruments=INSTRUMENTS)
    clock = Turns(watch, worker)
    model.fit(
        data,
        epochs=2 * rounds + 4,
        steps_per_epoch=steps,
        verbose=0,
        callbacks=[clock, watch],  # in this order: it ends an epoch
    )
    step = 1e3 * statistics.median(clock.steps[2:])
    theirs = clock.theirs
    plain = statistics.median(theirs["plain"]) / WINDOW
    every = added(theirs["every"], theirs["idle"]) / WINDOW
    return {
        "ours": (step, 1e3 * added(clock.ends[True], clock.ends[False])),
        "Cockpit": (plain, added(theirs["measured"], theirs["idle"])),
        "Cockpit, at every step": (plain, every),
    }


def table_of_figures(found):
    """Return the table: of the last update, and differences over all."""
    head = ["ours; Cockpit's"]
    for name in found:
        head += [f"{MODELS[name]}, {DTYPES[name]}: ours"]
        head += ["Cockpit's", "difference"]
    lines = [f"| {' | '.join(head)} |", "|---" + "|---:" * (len(head) - 1)]
    lines[-1] += "|"
    for row in ROWS:
        cells = [row]
        for pairs in found.values():
            shown = pairs[row][-1]
            scalar = np.ndim(shown[0]) == 0
            cells += [f"{v:.7g}" if scalar else "" for v in shown]
            apart = difference(pairs[row])
            cells.append("–" if np.isnan(apart) else f"{apart:.0e}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def table_of_times(found):
    """Return the table of milliseconds, and of plain steps and epochs."""
    lines = [
        "| | plain step, ms | a measurement, ms | in plain steps | "
        f"{MEASURED} in an epoch of {EPOCH} steps |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, both in found.items():
        for who, (step, more) in both.items():
            share = MEASURED * more / (EPOCH * step)
            cells = f"{step:.3g} | {more:.3g} | {more / step:.1f} | {share:.1%}"
            lines.append(f"| {MODELS[name]}, {who} | {cells} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(THREADS)
    tf.config.threading.set_inter_op_parallelism_threads(THREADS)
    try:
        worker = Worker("cockpit")
    except WorkerError as error:
        print(f"Cockpit: {error}")
        return
    try:
        equal = {name: figures(name, worker) for name in MODELS}
        found = [table_of_figures(equal)]
        print(found[0], flush=True)
        if given.rounds:
            cost = {
                name: times(name, worker, given.rounds, steps=given.steps)
                for name in TIMED
            }
            found.append(table_of_times(cost))
            print(found[1])
    finally:
        worker.close()
    apart = [difference(p) for rows in equal.values() for p in rows.values()]
    print(
        f"largest difference {np.nanmax(apart):.1e} (aim: at most {AIM:g}), "
        f"{np.isnan(apart).sum()} not defined"
    )
    if given.write:
        tables.write(PLACE, *found)


if __name__ == "__main__":
    main()
