"""Peak memory and time of a train step against the size of its batch.

Three ways to the gradient of a big batch, each in processes of its own: the
plain step; Keras's `gradient_accumulation_steps`, which is fed microbatches;
and `Accumulated`, which takes the batch apart inside the step. Three layers
of 256 units see 64 positions, so that activations take most of the memory.

    python -m benchmarks.steps.accumulation_memory

writes accumulation_memory.json and accumulation_memory.png into results/.
"""

import json
import statistics
import sys
import time

from benchmarks.harness.process import RESULTS, figures_of

LABELS = {
    "plain": "plain step",
    "keras": "Keras's gradient_accumulation_steps",
    "ours": "Accumulated(microbatch_size=64)",
}
SIZES = (64, 256, 1024, 4096)
MICROBATCH = 64
TIMED = 1024
FEATURES, POSITIONS, UNITS = 16, 64, 256


def trainer(way, size):
    """A function that trains on one batch, and the batch's bytes."""
    import keras
    import numpy as np

    import keras_pergrad as kpg

    keras.utils.set_random_seed(0)
    inputs = keras.Input((POSITIONS, FEATURES))
    hidden = inputs
    for _ in range(3):
        hidden = keras.layers.Dense(UNITS, activation="relu")(hidden)
    hidden = keras.layers.GlobalAveragePooling1D()(hidden)
    model = kpg.PerGradModel(inputs, keras.layers.Dense(10)(hidden))
    count = size // MICROBATCH
    own = way == "keras" and count > 1
    mode = kpg.Accumulated(microbatch_size=MICROBATCH)
    model.compile(
        keras.optimizers.SGD(
            0.01, gradient_accumulation_steps=count if own else None
        ),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        gradient_mode=mode if way == "ours" else "batch",
        jit_compile=False,
    )
    rng = np.random.default_rng(0)
    x = rng.standard_normal((size, POSITIONS, FEATURES), dtype="float32")
    y = rng.integers(0, 10, size=size)
    fed = MICROBATCH if way in ("keras", "small steps") else size

    def update():
        for start in range(0, size, fed):
            rows = slice(start, start + fed)
            model.train_on_batch(x[rows], y[rows])

    return update, x.nbytes


def seconds(updates, repeats):
    """The median time of each, taken in turns so that all see one machine."""
    times = [[] for _ in updates]
    for _ in range(1 + repeats):
        for taken, update in zip(times, updates):
            start = time.perf_counter()
            update()
            taken.append(time.perf_counter() - start)
    return [round(statistics.median(taken[1:]), 4) for taken in times]


def run(way, size):
    """Trains in this process; prints its figures as JSON."""
    import resource

    figures = {"way": way, "batch": size}
    if way == "time":
        updates = [trainer(w, size)[0] for w in ("ours", "small steps")]
        figures["ours"], figures["small steps"] = seconds(updates, 5)
    else:
        update, data = trainer(way, size)
        # TensorFlow itself, the model and the arrays are there before.
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        (figures["seconds"],) = seconds([update], 2)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        figures["rise_mib"] = round(peak - before, 1)
        figures["peak_mib"] = round(peak, 1)
        figures["data_mib"] = round(data / 2**20, 1)
    print(json.dumps(figures))


def measure(way, size):
    """The figures of one process."""
    return figures_of(
        "-m", "benchmarks.steps.accumulation_memory", way, str(size)
    )


def table(results):
    """The figures in lines, and the two ratios that matter."""
    lines = [f"{'':6} {'batch':>6} {'peak MiB':>9} {'step s':>8}"]
    found = {(r["way"], r["batch"]): r for r in results}
    for r in results:
        if r["way"] in LABELS:
            lines.append(
                f"{r['way']:6} {r['batch']:6} {r['peak_mib']:9.0f} "
                f"{r['seconds']:8.3f}"
            )
    small, big = found["plain", MICROBATCH], found["ours", SIZES[-1]]
    data = big["data_mib"] - small["data_mib"]
    memory = (big["peak_mib"] - data) / small["peak_mib"]
    turns = found["time", TIMED]
    if "rise_mib" in small:
        lines.append(
            f"rise over the process before its first step: "
            f"{small['rise_mib']:.0f} MiB for {MICROBATCH}, "
            f"{big['rise_mib']:.0f} MiB for {SIZES[-1]} in microbatches"
        )
    lines += [
        f"peak of {SIZES[-1]} in microbatches of {MICROBATCH}, less the data, "
        f"over the plain step of {MICROBATCH}: {memory:.2f}",
        f"time of {TIMED} in microbatches of {MICROBATCH} over as many plain "
        f"steps, in turns: {turns['ours'] / turns['small steps']:.2f}",
    ]
    return "\n".join(lines)


def picture(results, path):
    """Peak memory against batch size."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for way, label in LABELS.items():
        rows = [r for r in results if r["way"] == way]
        axes.plot(
            [r["batch"] for r in rows],
            [r["peak_mib"] for r in rows],
            marker="o",
            label=label,
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(SIZES, [str(s) for s in SIZES])
    axes.set_ylim(0)
    axes.set_xlabel("batch size")
    axes.set_ylabel("peak memory of the process, MiB")
    axes.legend()
    figure.savefig(path, dpi=120)


def main():
    asked = [(way, size) for size in SIZES for way in LABELS]
    results = []
    for way, size in [*asked, ("time", TIMED)]:
        results.append(measure(way, size))
        print(results[-1], flush=True)
    print(table(results))
    (RESULTS / "accumulation_memory.json").write_text(
        json.dumps(results, indent=1) + "\n"
    )
    picture(results, RESULTS / "accumulation_memory.png")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run(sys.argv[1], int(sys.argv[2]))
    else:
        main()
