"""Plain and clipped steps on a GPU, with peers: one table.

    make bench-gpu
    python -m benchmarks.steps.gpu --models cifar10,bert --rivals plain,ours

Writes `results/gpu.json`, which keeps what other calls have measured, and
`results/gpu.md`. All rivals of a row take turns in one run; peak memory and
the first step are of a process each. The seven small models have the same
weights in every framework; of the large ones torch has WRN-16-4 and BERT, with
weights of its own.
"""

import argparse
import os
import pathlib

from benchmarks.harness import alone, interleaved, machine, results
from benchmarks.harness.large_models import HALF
from benchmarks.harness.models import STANDARD
from benchmarks.harness.process import GPU, RESULTS
from benchmarks.harness.rivals import CLIPPED, RIVALS

#: Two batch sizes of each model.
SIZES = {
    **dict.fromkeys(STANDARD, (64, 256)),
    "wrn_16_4": (64, 256),
    "resnet50": (32, 128),
    "bert": (16, 64),
    "gpt2_512": (4, 8),
    "gpt2_1024": (2, 4),
    "gpt2_512_lora": (8, 16),
    "vit": (16, 64),
    # In mixed precision.
    **{f"bert_{half}": (64,) for half in HALF},
    **{f"gpt2_512_{half}": (8,) for half in HALF},
    **{f"vit_{half}": (64,) for half in HALF},
}
OURS = ("plain_xla", "ours_xla", "plain", "ours")
#: On one card, split in two logical ones; Keras switches XLA off.
SPLIT = ("plain_replicas", "ours_replicas")
IN_TWO = {"mnist", "cifar10", "transformer", "wrn_16_4", "bert"}
TORCH = ("torch_plain", "torch_compiled", "opacus", "opacus_ghost")
JAX = ("jax_plain", "jax_vmap", "jax_privacy")
IN_TORCH = {*STANDARD, "wrn_16_4", "bert"}
PATH = RESULTS / "gpu.json"
#: Seconds that a rival may take to compile.
LIMIT = 600
HEADER = (
    "model, batch",
    "plain, ms",
    "clipped",
    "without XLA: plain",
    "clipped",
    "card split in two: plain",
    "clipped",
    "peak, MB: plain",
    "clipped",
    "first step, s: plain",
    "clipped",
    "torch plain",
    "compiled",
    "Opacus hooks",
    "ghost",
    "JAX plain",
    "vmap",
    "jax_privacy",
)


def rivals_of(model):
    """Return who can do a model."""
    own = (*OURS, *(SPLIT if model in IN_TWO else ()))
    peers = TORCH if model in IN_TORCH else ()
    if model in STANDARD:
        return (*own, *peers, *JAX)
    is_half = model.endswith(HALF)
    return (*own, *peers, *(() if is_half else ("jax_privacy",)))


def measure(model, batch, rivals, *, rounds, log=print):
    """Return rival → its figures, as `results.summarise` has them."""
    entries = [
        interleaved.Entry(r, model, CLIPPED, batch=batch) for r in rivals
    ]
    interleaved.run(entries, rounds, log, limit=LIMIT, slow_ms=None)
    found = results.summarise(entries, f"plain_xla@{batch}")
    own = [entry for entry in entries if entry.rival.framework == "tensorflow"]
    for key, more in alone.run(own, log, LIMIT).items():
        found[key] = {**found[key], **more}
    return {key.partition("@")[0]: value for key, value in found.items()}


def table(stored):
    """Return the Markdown page of what is stored."""
    here = stored["machine"]
    versions = ", ".join(f"{k} {v}" for k, v in here["versions"].items())
    lines = [
        "# Clipped steps on a GPU",
        "",
        f"{here['accelerator']}, {here['cores']} cores; {versions}. "
        "Milliseconds of a training step, medians; in brackets the ratio to "
        "the same framework's plain step. Norms and sums with TensorFloat-32.",
        "",
        f"| {' | '.join(HEADER)} |",
        "|---" * len(HEADER) + "|",
    ]
    for row in sorted(stored["rows"], key=_place):
        lines.append(f"| {row} | {' | '.join(_cells(stored['rows'][row]))} |")
    return "\n".join(lines) + "\n"


def _place(row):
    model, batch = row.split(", ")
    return list(SIZES).index(model), int(batch)


def _cells(found):
    return [
        _ms(found, "plain_xla"),
        _ms(found, "ours_xla", "plain_xla"),
        _ms(found, "plain"),
        _ms(found, "ours", "plain"),
        _ms(found, "plain_replicas"),
        _ms(found, "ours_replicas", "plain_replicas"),
        *(
            _figure(found, r, "peak_mb", unit=1)
            for r in ("plain_xla", "ours_xla")
        ),
        *(
            _figure(found, r, "first_ms", unit=1e3)
            for r in ("plain_xla", "ours_xla")
        ),
        _ms(found, "torch_plain"),
        *(_ms(found, r, "torch_plain") for r in TORCH[1:]),
        _ms(found, "jax_plain"),
        *(_ms(found, r, "jax_plain") for r in JAX[1:]),
    ]


def _ms(found, rival, unit=None):
    times = found.get(rival, {}).get("ms")
    if times is None:
        return "error" if "error" in found.get(rival, {}) else ""
    base = found.get(unit, {}).get("ms")
    ratio = f" ({times[0] / base[0]:.2f})" if base else ""
    return f"{times[0]:.3g}{ratio}"


def _figure(found, rival, field, *, unit):
    value = found.get(rival, {}).get(field)
    return "" if value is None else f"{value / unit:.3g}"


def main(arguments=None):
    options = _parse(arguments)
    os.environ[GPU] = "1"
    stored = results.load(options.output) or {"rows": {}}
    frameworks = {RIVALS[r].framework for r in options.rivals}
    stored["machine"] = machine.describe(sorted(frameworks))
    for model in options.models:
        rivals = [r for r in rivals_of(model) if r in options.rivals]
        for batch in options.batch or SIZES[model]:
            print(f"{model}, {batch}", flush=True)
            row = stored["rows"].setdefault(f"{model}, {batch}", {})
            row.update(measure(model, batch, rivals, rounds=options.rounds))
            results.write(stored, options.output)
            options.output.with_suffix(".md").write_text(table(stored))


def _parse(arguments):
    def names(text):
        return text.split(",")

    everyone = [*OURS, *SPLIT, *TORCH, *JAX]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=names, default=[*SIZES])
    parser.add_argument("--rivals", type=names, default=everyone)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch", type=int, nargs="*")
    parser.add_argument("--output", type=pathlib.Path, default=PATH)
    options = parser.parse_args(arguments)
    for name, known in (("models", SIZES), ("rivals", everyone)):
        for value in getattr(options, name):
            if value not in known:
                parser.error(
                    f"expected some of {', '.join(known)}. Received: {value}"
                )
    return options


if __name__ == "__main__":
    main()
