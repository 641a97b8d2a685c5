"""The comparison of runs: are their gradients consistent?"""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_pergrad.common import page
from keras_pergrad.common.arguments import (
    named_arguments,
    number_from,
    positive_integer,
)
from keras_pergrad.common.optional import import_if_there
from keras_pergrad.runs import (
    alignment,
    divergence,
    effects,
    findings,
    noise_scale,
    report,
    step_statistics,
)
from keras_pergrad.runs.figures import NORM
from keras_pergrad.runs.findings import Finding
from keras_pergrad.runs.grouping import FIELDS, Grouping, mode_name, short_names
from keras_pergrad.runs.records import list_runs


@dataclasses.dataclass(repr=False)
class RunComparison:
    """The comparison of several runs. Print it, `plot` it, write it `to_html`.

    Attributes:
        runs: one dict a run: its name, a label of what distinguishes it, seed,
            device, mode, group, tags, how many records, the last step and the
            first one at which its gradient is not finite, or None.
        data: figure → array, one entry a step, NaN where undefined; `meanings`
            explains each figure. Means and spreads count each seed once,
            however many repeats it has.
        squared_distances: of each two runs, relative to the
            gradient's norm and averaged over the steps, (R, R).
        divergences: where runs diverge: repeats, then all runs of a seed, then
            all together.
        groups: an `Effect` for each pair of groups, if `by` was given.
        noise_scales: a `NoiseScale` of each group, or of all runs together if
            `by` was not given; none where the variance of the samples'
            gradients was not recorded.
        by: the tag or field of the groups, or None.
        seeds: how many seeds there are; an unknown one counts as a seed.
        repeated: the number of runs with a repeat to compare them with.
        samples: how many samples the probe batch has.
        tolerance: the given tolerance.
        notes: what else the reader should know.
    """

    runs: list[dict[str, Any]]
    data: dict[str, np.ndarray]
    squared_distances: np.ndarray
    divergences: list[divergence.Divergence]
    groups: list[effects.Effect]
    noise_scales: list[noise_scale.NoiseScale]
    by: str | None
    seeds: int
    repeated: int
    samples: int
    tolerance: float
    notes: list[str]

    @property
    def meanings(self) -> dict[str, str]:
        """What each figure of `data` is, by its name."""
        return dict(step_statistics.MEANINGS)

    @property
    def findings(self) -> list[Finding]:
        """What was found: a list of `Finding`, the most important first."""
        return findings.collect_findings(self)

    @property
    def answer(self) -> str:
        """Whether seeds and nondeterminism normally cause such differences."""
        return findings.make_answer(self)

    @property
    def verdict(self) -> list[str]:
        """The findings in words: a list of strings."""
        return [str(finding) for finding in self.findings]

    def __str__(self) -> str:
        return report.text(self)

    __repr__ = __str__

    def _repr_html_(self):
        return report.content(self)

    @named_arguments
    def plot(self, axes: Any = None) -> Any:
        """Draw norm, distances, variance and cosine over the steps.

        Args:
            axes: four matplotlib axes, or None for a new figure.

        Returns:
            The matplotlib figure.

        Raises:
            ImportError: matplotlib is not installed.
        """
        return report.plot(self, axes)

    @named_arguments
    def to_html(self, path: str | os.PathLike[str]) -> str:
        """Write one page that needs no other file and no network.

        Args:
            path: the file to write.

        Returns:
            The path.
        """
        document = report.document(self)
        return page.write(path, document)


@named_arguments
def compare_runs(
    log_dir: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    by: str | None = None,
    tolerance: float = 1e-3,
    max_steps: int = 512,
) -> RunComparison:
    """Compare the gradients of runs on the same probe batch.

    The runs were recorded by `callbacks.GradientVariance(log_dir=...)`. For
    each pair, the sketches of the gradients give the distance to about 2 %.
    These are the measures and their meanings:

    - *variance* between runs: the trace of the covariance of the gradient,
      ½ the mean squared distance of two runs of different seeds, with a 95 %
      interval for normally distributed differences (chi-square with
      Satterthwaite's degrees of freedom, on the safe side for few runs).
    - *repeats* have the same seed, device, machine, optimizer and mode. Their
      difference is nondeterminism, the noise floor of everything else.
    - each seed counts once in all means and spreads, however many repeats.
    - *sampling share*: the variance that runs of equal weights would have if
      each had drawn its own probe batch (the trace of the per-sample
      covariance over the number of samples), over that between runs, at most
      1. A reference and not a cause: the probe is the same in every run.
    - *divergence*: the first step at which a variable's gradient differs
      between runs by more than `tolerance`; no step is left out.
    - *noise scale* of a group of runs, in samples: the mean of tr Σ over the
      mean of ‖ḡ‖² − tr Σ / n, over all readings at the compared steps
      (McCandlish et al. 2018), with a 95 % interval by the jackknife.
    - *effect* of a group: the distance between runs of two groups (of equal
      seeds if there are any) over that of repeats, or else of seeds.

    Args:
        log_dir: the directory with the runs, or a list of directories, for
            records of several machines.
        by: a tag of the runs, or "device", "seed", "machine" or "mode": it
            makes the groups to compare.
        tolerance: runs count as equal up to this difference of a variable's
            gradient, relative to its norm.
        max_steps: most steps to show and compare pairwise; more are thinned
            evenly.

    Returns:
        A `RunComparison`. Without SciPy, which the extra `keras-pergrad[plot]`
        installs, it lacks the intervals and the p-values of few runs, and says
        so in its notes.

    Raises:
        FileNotFoundError: `log_dir` is not a directory.
        ValueError: fewer than two runs have records, the runs have different
            models, losses or probe batches or another version, no two runs
            share a step, or `by` is not a tag.

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
    >>> comparison = kpg.diagnose.compare_runs(log_dir)
    >>> print(comparison)
    3 runs of 2 seeds, 2 steps
    = The runs differ by no more than seeds and nondeterminism ...
    >>> comparison.data["cosine"].shape
    (2,)
    """
    tolerance = number_from("tolerance", tolerance, 0)
    max_steps = positive_integer("max_steps", max_steps)
    _require_no_directory(log_dir, by)
    aligned = alignment.align(log_dir, max_steps)
    grouping = Grouping(aligned.infos, by)
    data, distances = step_statistics.compute_figures(aligned, grouping)
    divergences = divergence.find_divergences(aligned, grouping, tolerance)
    # Repeats that share no finite step say nothing about nondeterminism.
    repeats = grouping.repeats & np.isfinite(distances)
    return RunComparison(
        runs=_run_summaries(aligned, grouping),
        data=data,
        squared_distances=distances,
        divergences=divergences,
        groups=effects.compute_effects(distances, grouping, by) if by else [],
        noise_scales=noise_scale.compute_noise_scales(aligned, grouping),
        by=by,
        seeds=len(np.unique(grouping.seeds)),
        repeated=int(repeats.any(1).sum()),
        samples=int(aligned.infos[0]["probe_samples"]),
        tolerance=tolerance,
        notes=[*aligned.notes, *_notes(grouping, by, repeats)],
    )


def _require_no_directory(log_dir, by):
    """Refuse a second directory of runs that was given as `by`."""
    is_path = isinstance(by, (str, os.PathLike))
    if not is_path or by in FIELDS or not os.path.isdir(by):
        return
    if isinstance(by, os.PathLike) or list_runs(by):
        both = [*alignment.directories(log_dir), os.fspath(by)]
        raise ValueError(
            f"`by` expected a tag of the runs, or one of {', '.join(FIELDS)}. "
            f"Received: by={by!r}, a directory. To compare the runs of several "
            f"directories write compare_runs({both!r})."
        )


def _run_summaries(aligned, grouping):
    """Return one dict a run."""
    labels = short_names(aligned.infos)
    summaries = []
    for r, (name, run) in enumerate(zip(aligned.names, aligned.runs)):
        steps = run.scalars["step"]
        broken = steps[~np.isfinite(run.scalars[NORM.name])].tolist()
        summaries.append(
            {
                "name": name,
                "label": labels[r],
                "seed": run.info.get("seed"),
                "device": run.info.get("device"),
                "mode": mode_name(run.info),
                "group": grouping.groups[r] if grouping.groups else None,
                "tags": dict(run.info.get("tags") or {}),
                "records": len(run),
                "last_step": int(steps[-1]),
                "first_not_finite": broken[0] if broken else None,
            }
        )
    return summaries


def _notes(grouping, by, repeats):
    """Yield notes on seeds and groups; `repeats`: pairs with a distance."""
    if grouping.groups and len(set(grouping.groups)) == 1:
        group = grouping.groups[0]
        yield f"All runs have {by} {group!r}: no groups to compare."
    unknown = int((~grouping.has_seed).sum())
    if unknown:
        yield (
            f"{unknown} runs have no known seed and count as runs of "
            "different seeds; keras.utils.set_random_seed sets one."
        )
    if import_if_there("scipy.special") is None:
        yield (
            "The 95 % intervals, and p-values of few runs, need "
            "SciPy: pip install 'keras-pergrad[plot]'."
        )
    if grouping.repeats.any() and not repeats.any():
        yield (
            "Runs that repeat each other share no step at which gradients "
            "are finite and not zero: they count as not repeated."
        )
