"""Predicted and measured peak memory of training steps.

Measured is the rise of a process's highest resident size over what it has
before its first step, with model and data there, after five steps (Linux), in
several processes of its own; predicted is `explain(...).memory.rise`.

    python -m benchmarks.memory_prediction
    python -m benchmarks.memory_prediction --processes 3 "lstm" "mlp, adam"

prints tables and writes memory_prediction.json; cases that are named replace
their part of the file.
"""

import argparse
import json
import pathlib
import statistics
import sys

from benchmarks.memory_models import CASES, batch, make
from benchmarks.process import figures_of

PATH = pathlib.Path(__file__).with_suffix(".json")
STEPS = 5
_CASES = {case.name: case for case in CASES}


def _mode(case):
    import keras_pergrad as kpg

    clipped = kpg.Vectorized(kpg.ClippedMean(1.0))
    part = case.batch // 8
    return {
        "clipped": clipped,
        "accumulated": kpg.Accumulated(microbatch_size=part),
        "accumulated, clipped": kpg.Accumulated(
            microbatch_size=part, inner=clipped
        ),
    }[case.mode]


def compiled(case):
    """The model of a case."""
    import keras

    import keras_pergrad as kpg

    keras.utils.set_random_seed(0)
    model = kpg.PerGradModel.from_model(make(case))
    optimizer = keras.optimizers.get(case.optimizer)
    optimizer.learning_rate = 1e-6
    model.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        gradient_mode=_mode(case),
        jit_compile=False,
    )
    return model


def resident(field):
    """Bytes of the process: "VmRSS" has now, "VmHWM" had at most."""
    status = pathlib.Path("/proc/self/status").read_text()
    (line,) = [s for s in status.splitlines() if s.startswith(f"{field}:")]
    return int(line.split()[1]) * 1024


def predict(case):
    """The prediction, in this process."""
    import keras_pergrad as kpg

    model = compiled(case)
    x, _ = batch(model, case, 2)
    found = kpg.explain(model, case.batch, x=x).memory
    return {
        "predicted": found.rise,
        "tensors": found.tensors,
        "unknown": found.unknown,
    }


def measure(case):
    """The peak of this process."""
    model = compiled(case)
    x, y = batch(model, case, case.batch)
    before = resident("VmRSS")
    for _ in range(STEPS):
        model.train_on_batch(x, y)
    return {"measured": resident("VmHWM") - before, "process": before}


def _ask(what, case):
    """The figures of a process of its own."""
    return figures_of("-m", "benchmarks.memory_prediction", what, case.name)


def table(results):
    """The figures as a Markdown table, MB."""
    lines = [
        "| | batch | predicted, MB | measured, MB | off by |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for r in results:
        least, most = min(r["measured"]), max(r["measured"])
        middle = statistics.median(r["measured"])
        lines.append(
            f"| {r['name']} | {r['batch']:,} | {r['predicted'] / 1e6:,.0f} | "
            f"{middle / 1e6:,.0f} ({least / 1e6:,.0f}–{most / 1e6:,.0f}) | "
            f"{r['predicted'] / middle - 1:+.0%} |"
        )
    return "\n".join(lines)


def recorded():
    """The stored results by case."""
    rows = json.loads(PATH.read_text()) if PATH.exists() else []
    return {row["name"]: row for row in rows}


def main(options):
    for name in options.cases or _CASES:
        case = _CASES[name]
        row = {"name": name, "batch": case.batch, "held_out": case.held_out}
        if options.processes:
            found = [_ask("measure", case) for _ in range(options.processes)]
            row["measured"] = [each["measured"] for each in found]
            row["process"] = statistics.median(e["process"] for e in found)
        stored = recorded()
        row = {**stored.get(name, {}), **row, **_ask("predict", case)}
        print(row, flush=True)
        stored[name] = row
        rows = [stored[each] for each in _CASES if each in stored]
        PATH.write_text(json.dumps(rows, indent=1) + "\n")
    for held_out in (False, True):
        print(table([r for r in rows if r["held_out"] == held_out]), "\n")


def _options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument(
        "--processes", type=int, default=5, help="0: predict only"
    )
    options = parser.parse_args()
    unknown = [name for name in options.cases if name not in _CASES]
    if unknown:
        parser.error(f"expected some of {list(_CASES)}. Received: {unknown}")
    return options


if __name__ == "__main__":
    if sys.argv[1:2] in (["predict"], ["measure"]):
        do = {"predict": predict, "measure": measure}[sys.argv[1]]
        print(json.dumps(do(_CASES[sys.argv[2]])))
    else:
        main(_options())
