"""Measures clipped and materialised per-sample gradients.

    python -m benchmarks.steps.per_sample
    python -m benchmarks.steps.per_sample --models mnist --rivals ours,plain \\
        --batch 64 --rounds 12
"""

import argparse
import pathlib

from benchmarks.harness import alone, interleaved, machine, models, results
from benchmarks.harness.rivals import (
    BOTH,
    CLIPPED,
    MATERIALISED,
    OURS,
    REAL_MODELS,
    RIVALS,
)
from benchmarks.steps import growth, real_models, report

SECTIONS = (*BOTH, "xla", "growth", "alone", "large", REAL_MODELS)
_UNITS = ("plain", "plain_xla")


def main(arguments=None):
    options = _parse(arguments)
    frameworks = {RIVALS[r].framework for r in options.rivals}
    here = machine.describe(sorted(frameworks))
    for section in options.sections:
        for model in _models(section, options.models):
            print(f"{section}: {model}", flush=True)
            found = _SECTIONS[section](section, model, options)
            results.store(
                section, model, found, machine=here, path=options.output
            )
    report.write(results.load(options.output), options.output)


def _interleaved(task, model, options):
    """The task at one batch size, all rivals in one run."""
    rivals = [r for r in options.rivals if task in RIVALS[r].tasks]
    return _run(
        task, model, rivals, sizes=[options.batch], rounds=options.rounds
    )


def _xla(section, model, options):
    """The clipped step, ours and plain, both under XLA."""
    del section
    rivals, sizes = ["plain_xla", "ours_xla"], [options.batch]
    return _run(
        CLIPPED,
        model,
        rivals,
        sizes=sizes,
        rounds=options.rounds,
        unit="plain_xla",
    )


def _growth(section, model, options):
    """Clipped steps beside the plain one, from size to size."""
    del section
    entries = _entries(CLIPPED, model, growth.RIVALS, sizes=growth.SIZES)
    interleaved.run(entries, options.rounds, _log)
    return results.summarise(entries, "plain@64")


def _large(section, model, options):
    """What per-sample gradients written out would make impossible."""
    del section
    batch = {"dense4096": 256}.get(model, options.batch)
    entries = _entries(CLIPPED, model, ["plain", "ours"], sizes=[batch])
    interleaved.run(entries, options.rounds, _log)
    found = results.summarise(entries, f"plain@{batch}")
    for key, more in alone.run(entries, _log).items():
        found[key] = {**found[key], **more}
    return found


def _alone(section, model, options):
    """First step and peak memory of the clipped step.

    One process each takes long: the peers get three of the models.
    """
    del section
    rivals = [r for r in options.rivals if CLIPPED in RIVALS[r].tasks]
    if model not in ("mnist", "cifar10", "transformer"):
        rivals = [r for r in rivals if r in (*_UNITS, *OURS)]
    return alone.run(
        _entries(CLIPPED, model, rivals, sizes=[options.batch]), _log
    )


def _real_models(section, model, options):
    """Plain and clipped `fit` steps of what people train."""
    del section
    return real_models.measure(model, options.rounds, options.size, log=_log)


_SECTIONS = {
    CLIPPED: _interleaved,
    MATERIALISED: _interleaved,
    "xla": _xla,
    "growth": _growth,
    "alone": _alone,
    "large": _large,
    REAL_MODELS: _real_models,
}


def _run(task, model, rivals, *, sizes, rounds, unit="plain"):
    entries = _entries(task, model, rivals, sizes=sizes)
    interleaved.run(entries, rounds, _log)
    return results.summarise(entries, f"{unit}@{sizes[0]}")


def _entries(task, model, rivals, *, sizes):
    return [
        interleaved.Entry(rival, model, task, batch=batch)
        for batch in sizes
        for rival in rivals
    ]


def _models(section, chosen):
    known = {"large": models.LARGE, REAL_MODELS: real_models.LIMITS}.get(
        section, models.STANDARD
    )
    return [m for m in known if not chosen or m in chosen]


def _log(text):
    print(text, flush=True)


def _parse(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--sections", type=_names(SECTIONS), default=",".join(SECTIONS))
    names = _names({**models.SPECS, **real_models.LIMITS})
    add("--models", type=names, default="", help="all if empty")
    add("--rivals", type=_names(RIVALS), default=",".join(RIVALS))
    add("--batch", type=int, default=64, help="not of real models")
    sizes = {"choices": ("bench", "tiny"), "default": "bench"}
    add("--size", **sizes, help="of real models")
    add("--rounds", type=int, default=12)
    add("--output", type=pathlib.Path, default=results.PATH)
    return parser.parse_args(arguments)


def _names(known):
    def parse(text):
        names = [name for name in text.split(",") if name]
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(
                f"expected some of {', '.join(known)}. "
                f"Received: {', '.join(unknown)}"
            )
        return names

    return parse


if __name__ == "__main__":
    main()
