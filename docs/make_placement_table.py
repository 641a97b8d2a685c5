"""Prints the table of docs/device_placement.md: where Metal would run a step.

    python -m docs.make_placement_table

A prediction for tensorflow-metal 1.2.0 with Adam and a batch of 8; it takes
a minute on any machine.
"""

import keras
from keras import layers

import keras_pergrad as kpg
from tests.metal_stub import models


def _gru_text():
    return (256,), [
        layers.Embedding(10004, 100),
        layers.GRU(100, return_sequences=True, use_cudnn=False),
        layers.GlobalAveragePooling1D(),
        layers.Dense(2),
    ]


def modes():
    clipped = kpg.Vectorized(aggregation=kpg.ClippedMean(1.0))
    return {
        "batch": "batch",
        "vectorized": "vectorized",
        "vectorized, clipped": clipped,
        "accumulated": kpg.Accumulated(microbatch_size=4),
    }


def row(name, label, mode):
    keras.backend.clear_session()
    model, x, y = models.make(name, wrap=kpg.PerGradModel, gradient_mode=mode)
    report = kpg.diagnose.predict_placement(model, x, y)
    kinds = [operation.kind for operation in report.operations]
    counts = [kinds.count(kind) for kind in ("device", "generic", "cpu")]
    others = ", ".join(fallbacks(report, len(model.trainable_variables) + 1))
    shown = name if label == "batch" else ""
    return f"| {' | '.join([shown, label, *map(str, counts), others])} |"


def fallbacks(report, counted):
    """What is on the CPU but for the `counted` uses of the step number."""
    for op, reason, number, _ in report.fallbacks():
        _, _, wanted = reason.partition(" kernel for ")
        wanted = wanted.partition(" ")[0]
        if (op, wanted) == ("AddV2", "int64"):
            number -= counted
        if number:
            times = f" ×{number}" if number > 1 else ""
            yield f"{op} {wanted}".strip() + times


def main():
    models.BENCHMARKS["gru"] = _gru_text
    titles = ["model", "gradient mode", "Metal", "host kernels", "CPU"]
    titles.append("on the CPU, but for the step number")
    print(f"| {' | '.join(titles)} |")
    print("|---|---|---|---|---|---|")
    for name in models.BENCHMARKS:
        for label, mode in modes().items():
            print(row(name, label, mode), flush=True)


if __name__ == "__main__":
    main()
