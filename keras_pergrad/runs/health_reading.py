"""The reading of one measurement, by instruments of gradient health."""

import dataclasses
import json
import zlib
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Histogram:
    """How many values lie between two edges.

    Attributes:
        counts: how many values are in each bin; those that are not finite
            are in none.
        edges: the bins' borders, one more than bins, increasing; a bin has
            its left border, the last one both.
    """

    counts: tuple[int, ...]
    edges: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class HealthReading:
    """One measurement of `GradientVariance`.

    Attributes:
        step: the number of updates before it.
        samples: how many were measured, n.
        figures: numbers by the names that they have in the logs; NaN:
            undefined now; absent: not measured.
        by_variable: by instrument a value for each of `variable_names`; NaN:
            undefined.
        variable_names: the paths of `model.trainable_variables`, in order.
        histograms: `"gradient/<path of a variable>"`, of the entries of the
            mean gradient, and `"sample_norms"`, of the norms of the samples'
            gradients.
        layers: by instrument the paths of the layers that it names:
            "dead", "vanishing", "exploding".
    """

    step: int
    samples: int
    figures: Mapping[str, float]
    by_variable: Mapping[str, tuple[float, ...]]
    variable_names: tuple[str, ...]
    histograms: Mapping[str, Histogram] = dataclasses.field(
        default_factory=dict
    )
    layers: Mapping[str, tuple[str, ...]] = dataclasses.field(
        default_factory=dict
    )


def packed(reading):
    """Return a reading as compressed JSON."""
    known = json.dumps(dataclasses.asdict(reading), default=float)
    return zlib.compress(known.encode())


def _unpacked(content):
    known = json.loads(zlib.decompress(content))
    for name in ("by_variable", "layers"):
        known[name] = {k: tuple(v) for k, v in known[name].items()}
    known["variable_names"] = tuple(known["variable_names"])
    known["histograms"] = {
        name: Histogram(tuple(h["counts"]), tuple(h["edges"]))
        for name, h in known["histograms"].items()
    }
    return HealthReading(**known)


def of_run(run, contents):
    """Return a reading for each record of a `Run`, of `packed` ones by step."""
    steps = run.scalars["step"].tolist()
    lacking = [i for i, step in enumerate(steps) if step not in contents]
    paths = tuple(v["path"] for v in run.info["variables"])
    vectors = [run.read(name, lacking) for name in ("norms", "variances")]
    plain = {}
    for i, norms, variances in zip(lacking, *vectors):
        plain[steps[i]] = HealthReading(
            step=steps[i],
            samples=run.info["probe_samples"],
            figures={
                name: float(values[i])
                for name, values in run.scalars.items()
                if name.startswith(("gradient_", "bitwise_"))
            },
            by_variable={
                "norm": tuple(norms.tolist()),
                "variance": tuple(variances.tolist()),
            },
            variable_names=paths,
        )
    return [plain.get(s) or _unpacked(contents[s]) for s in steps]
