"""`compare_runs`: are the gradients of several runs consistent?"""

import dataclasses
import os

import numpy as np

from keras_pergrad.runs import (
    alignment,
    divergence,
    effects,
    facts,
    kinship,
    page,
    plots,
    spread,
    summary,
    verdict,
    weighting,
)
from keras_pergrad.runs.moments import Moments


@dataclasses.dataclass
class RunComparison:
    """What `compare_runs` found. Print it, `plot` it, write it `to_html`.

    Attributes:
        runs: one dict a run: its name, seed, device, mode, group, tags, how
            many records, the last step and the first one at which its
            gradient is not finite, or None.
        data: name → array, one entry a step: `step`, `runs`, `loss`,
            `norm`, `norm_sd`, `variance`, `variance_low`, `variance_high`,
            `repeat_variance`, `sampling_variance`, `sampling_ratio`,
            `sampling_share`, `cosine`, `cosine_min`, `distance`,
            `repeat_distance`, `sampling_distance`. NaN where undefined.
            Means and spreads count each seed once, whatever its repeats.
        apart: squared distances between the runs, relative to the
            gradient's norm and averaged over the steps, (R, R).
        divergences: where runs part: repeats, then all runs of a seed, then
            all together.
        groups: an `Effect` for each two groups, when `by` was given.
        by: the tag or field of the groups, or None.
        seeds: how many seeds there are; an unknown one counts as a seed.
        repeated: the number of runs with a repeat to compare them with.
        samples: how many samples the probe batch has.
        tolerance: what was given.
        notes: what else the reader should know.
        moments: of `gradient_norm`, `gradient_variance` and `loss` across
            the runs, at each step, each run counted once, repeats too;
            those of another comparison with the same steps can be merged
            into them.
    """

    runs: list[dict]
    data: dict[str, np.ndarray]
    apart: np.ndarray
    divergences: list[divergence.Divergence]
    groups: list[effects.Effect]
    by: str | None
    seeds: int
    repeated: int
    samples: int
    tolerance: float
    notes: list[str]
    moments: dict[str, Moments]

    @property
    def verdict(self):
        """The answer in words: a list of sentences."""
        return verdict.sentences(self)

    def __str__(self):
        return summary.text(self)

    def _repr_html_(self):
        return page.fragment(self)

    def plot(self, axes=None):
        """Draws norm, distances, variance and cosine over the steps.

        Args:
            axes: four matplotlib axes, or None for a new figure.

        Returns:
            The matplotlib figure.

        Raises:
            ImportError: matplotlib is not installed.
        """
        return plots.plot(self, axes)

    def to_html(self, path):
        """Writes one page that needs no other file and no network.

        Args:
            path: of the file to write.

        Returns:
            The path.
        """
        with open(path, "w", encoding="utf-8") as file:
            file.write(page.document(self))
        return os.fspath(path)


def compare_runs(log_dir, by=None, tolerance=1e-3, max_steps=512):
    """Compares the gradients of runs on the same probe batch.

    The runs were recorded by `callbacks.GradientVariance(log_dir=...)`. Of
    each two, the distance is known to about 3 % from the sketches of their
    gradients. What is measured, and what it means:

    - *variance* between runs: the trace of the covariance of the gradient,
      ½ the mean squared distance of two runs of different seeds, with a 95 %
      interval for normally distributed differences (chi-square with
      Satterthwaite's degrees of freedom, on the safe side for few runs).
    - *repeats* have the same seed, device, machine, optimizer and mode. What
      they differ by is nondeterminism, the noise floor of everything else.
    - each seed counts once in all means and spreads, whatever its repeats.
    - *sampling share*: the probe is the same in every run, so at equal
      weights sampling adds nothing; it enters by the path of the weights.
      The yardstick is what it would add if each run had drawn a probe batch
      of its own: trace of the per-sample covariance over the samples. The
      share is that over the variance between runs, at most 1. Near 1, runs
      differ no more than batches do; near 0, they are at other places.
    - *divergence*: the first step at which a variable's gradient differs
      between runs by more than `tolerance`, at full resolution: at each
      step those runs are compared that have it.
    - *effect* of a group: the distance between runs of two groups (of equal
      seeds if there are any) over that of repeats, or else of seeds.

    Args:
        log_dir: the directory with the runs, or a list of directories, for
            records of several machines.
        by: a tag of the runs, or "device", "seed", "machine" or "mode":
            compares the groups that it makes.
        tolerance: differences of a variable's gradient, relative to its
            norm, up to which runs count as equal.
        max_steps: steps shown and compared pairwise; more are thinned evenly.

    Returns:
        A `RunComparison`.

    Raises:
        FileNotFoundError: `log_dir` is not a directory.
        ValueError: there are no two runs with records, they are of different
            models or probe batches or of another version, no step is in two
            runs, or `by` is not a tag.

    Example:

    >>> import tempfile, keras, numpy as np
    >>> import keras_pergrad as kpg
    >>> x, y = np.eye(8), np.ones((8, 1))
    >>> log_dir = tempfile.mkdtemp()
    >>> for seed in (1, 1, 2):
    ...     keras.utils.set_random_seed(seed)
    ...     model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    ...     model.compile("sgd", "mse")
    ...     record = kpg.callbacks.GradientVariance((x, y), log_dir=log_dir)
    ...     history = model.fit(x, y, epochs=2, verbose=0, callbacks=[record])
    >>> comparison = kpg.compare_runs(log_dir)
    >>> print(comparison)
    3 runs of 2 seeds, 2 steps
    - Runs of different seeds are apart by ...
    >>> comparison.data["cosine"].shape
    (2,)
    """
    _check(tolerance, max_steps)
    aligned = alignment.align(log_dir, max_steps)
    related = kinship.Kinship(aligned.infos, by)
    found = spread.measure(aligned, related)
    scalars = {
        name: _finite(aligned.scalars(name))
        for name in ("gradient_norm", "gradient_variance", "loss")
    }
    samples = int(aligned.infos[0]["probe_samples"])
    # Repeats that share no finite step say nothing of nondeterminism.
    repeats = related.repeats & np.isfinite(found.apart)
    return RunComparison(
        runs=facts.runs(aligned, related),
        data=_data(aligned, found, scalars, weighting.units(related), samples),
        apart=found.apart,
        divergences=divergence.divergences(aligned, related, tolerance),
        groups=effects.effects(found.apart, related, by) if by else [],
        by=by,
        seeds=len(np.unique(related.seeds)),
        repeated=int(repeats.any(1).sum()),
        samples=samples,
        tolerance=tolerance,
        notes=aligned.notes + facts.notes(aligned, related, by, repeats),
        moments={name: _moments(scalars[name]) for name in scalars},
    )


def _check(tolerance, max_steps):
    if not 0 <= tolerance < np.inf:
        raise ValueError(
            "`tolerance` expected a number of 0 or more. Received: "
            f"tolerance={tolerance!r}"
        )
    if not isinstance(max_steps, int) or max_steps < 1:
        raise ValueError(
            "`max_steps` expected a whole number of 1 or more. Received: "
            f"max_steps={max_steps!r}"
        )


def _finite(values):
    return np.where(np.isfinite(values), values, np.nan)


def _moments(values):
    """Across the runs, of a scalar (T, R)."""
    moments = Moments(values.shape[:1])
    for column in values.T:
        moments.add(column)
    return moments


def _data(aligned, found, scalars, units, samples):
    variance = weighting.average(scalars["gradient_variance"], units)
    sampling = variance / samples
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.where(found.variance > 0, sampling / found.variance, np.nan)
        # Two draws of variance v are √(2v) apart.
        distances = {
            name: np.sqrt(2 * np.maximum(variance, 0) / found.scale)
            for name, variance in (
                ("distance", found.variance),
                ("repeat_distance", found.repeat_variance),
                ("sampling_distance", sampling),
            )
        }
    return {
        "step": aligned.steps,
        "runs": (aligned.rows >= 0).sum(1),
        "loss": weighting.average(scalars["loss"], units),
        "norm": weighting.average(scalars["gradient_norm"], units),
        "norm_sd": weighting.deviation(scalars["gradient_norm"], units),
        "variance": found.variance,
        "variance_low": found.variance_low,
        "variance_high": found.variance_high,
        "repeat_variance": found.repeat_variance,
        "sampling_variance": sampling,
        "sampling_ratio": ratio,
        "sampling_share": np.minimum(ratio, 1.0),
        "cosine": found.cosine,
        "cosine_min": found.cosine_min,
        **distances,
    }
