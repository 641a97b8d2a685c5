"""Mutants of the arithmetic: python -m tests.mutants plants each by itself.

A mutant is one wrong line: a sign, a divisor, a mask or a weight that is
forgotten. It is killed by the first test that fails with it. The package and
its tests are copied to a temporary directory, and changed there alone.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[1]
#: What `make test` leaves out in every tier.
MARKS = "not slow and not exhaustive and not timing"
#: What is copied; the tests of mutants need no more.
COPIED = ("keras_pergrad", "tests", "pyproject.toml")


class Mutant(NamedTuple):
    """A wrong line.

    Attributes:
        name: of the mutant.
        file: of the package.
        old: a text that stands in the file once.
        new: what replaces it.
        tests: files or folders with tests of the feature, in the order in
            which they are tried.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


MUTANTS = (
    # Factors.
    Mutant(
        "outer-forgotten-weight",
        "factors/outer.py",
        "x *= expand(weights, x)",
        "x *= 1",
        ("tests/factors/test_every_factor.py",),
    ),
    Mutant(
        "outer-wrong-axis",
        "factors/outer.py",
        "return tf.reduce_sum(tf.square(tf.reduce_sum(self._gradients, 0)))",
        "return tf.reduce_sum(tf.square(tf.reduce_sum(self._gradients, 1)))",
        ("tests/factors/test_every_factor.py",),
    ),
    Mutant(
        "outer-last-chunk-alone",
        "factors/outer.py",
        "return k + 1, total + chunk_sum(*parts)",
        "return k + 1, chunk_sum(*parts)",
        ("tests/factors/test_every_factor.py",),
    ),
    Mutant(
        "joined-cross-term-once",
        "factors/joined.py",
        "rounded_up(squares + 2 * cross, 2 * squares, b)",
        "rounded_up(squares + cross, 2 * squares, b)",
        ("tests/factors/test_joined.py", "tests/factors/test_every_factor.py"),
    ),
    Mutant(
        "joined-products-not-turned",
        "factors/joined.py",
        "+ tf.transpose(other._cross(self))",
        "+ other._cross(self)",
        ("tests/factors/test_every_factor.py",),
    ),
    Mutant(
        "rows-pairs-of-equal-ids",
        "factors/rows.py",
        "is_repeated = counts > 1",
        "is_repeated = counts > 2",
        ("tests/factors/test_rows.py",),
    ),
    Mutant(
        "rows-products-not-turned",
        "factors/rows.py",
        "return tf.transpose(products)",
        "return products",
        ("tests/factors/test_every_factor.py",),
    ),
    Mutant(
        "patches-forgotten-weight",
        "factors/patches.py",
        "small *= expand(weights, small)",
        "small *= 1",
        ("tests/factors/test_every_factor.py",),
    ),
    Mutant(
        "windows-odd-padding-in-front",
        "factors/windows.py",
        "leading_zeros = zeros // 2",
        "leading_zeros = zeros - zeros // 2",
        ("tests/factors/test_patches.py",),
    ),
    Mutant(
        "blocks-missing-squares",
        "factors/blocks.py",
        "x, dz = (tf.square(t[:, :, 0]) for t in (self.x, self.dz))",
        "x, dz = (t[:, :, 0] for t in (self.x, self.dz))",
        ("tests/factors/test_every_factor.py",),
    ),
    Mutant(
        "simple-scale-once-in-a-square",
        "factors/simple.py",
        "return self._changed(self._changed(self.factor.sum_of_squares()))",
        "return self._changed(self.factor.sum_of_squares())",
        ("tests/factors/test_every_factor.py",),
    ),
    Mutant(
        "simple-start-of-columns",
        "factors/simple.py",
        "start += columns",
        "start = columns",
        ("tests/factors/test_every_factor.py",),
    ),
    Mutant(
        "with_bias-row-of-the-bias",
        "factors/with_bias.py",
        "kernel_factor.x + tf.cast(inputs[-1], kernel_factor.x.dtype),",
        "kernel_factor.x,",
        ("tests/influence/test_kronecker_blocks.py",),
    ),
    Mutant(
        "projection-missing-root",
        "factors/projection.py",
        "np.float32(1 / math.sqrt(self.size))",
        "np.float32(1 / self.size)",
        ("tests/factors/test_projection.py",),
    ),
    # Uses: the rules of ops and of recurrent layers.
    Mutant(
        "op_rules-sign-of-a-difference",
        "uses/op_rules.py",
        '"Sub": (1, -1)',
        '"Sub": (1, 1)',
        ("tests/uses/test_one_of_each.py", "tests/uses/test_own_layers.py"),
    ),
    Mutant(
        "op_rules-loss-scale-the-other-way",
        "uses/op_rules.py",
        "return gradient if scale is None else gradient / tf.cast(scale",
        "return gradient if scale is None else gradient * tf.cast(scale",
        ("tests/modes/test_one_of_each.py", "tests/modes/test_precision.py"),
    ),
    Mutant(
        "contraction_rules-inverse-order",
        "uses/contraction_rules.py",
        "perm = [labels.index(c) for c in target]",
        "perm = [list(target).index(c) for c in labels]",
        ("tests/uses/test_one_of_each.py", "tests/uses/rules/test_einsum.py"),
    ),
    Mutant(
        "convolution_rules-odd-padding-in-front",
        "uses/convolution_rules.py",
        "leading_zeros = at_least_zero(zeros) // 2",
        "leading_zeros = (at_least_zero(zeros) + 1) // 2",
        (
            "tests/uses/test_one_of_each.py",
            "tests/uses/rules/test_convolution.py",
        ),
    ),
    Mutant(
        "cells-forgotten-forget-gate",
        "uses/layer_rules/cells.py",
        "return dz, [self.state_gradient(dz), dc * f]",
        "return dz, [self.state_gradient(dz), dc]",
        (
            "tests/uses/test_one_of_each.py",
            "tests/uses/rules/test_recurrent.py",
        ),
    ),
    Mutant(
        "recurrent-forgotten-mask",
        "uses/layer_rules/recurrent.py",
        "dz = tf.where(items[-1], dz, tf.zeros_like(dz))",
        "dz = tf.identity(dz)",
        (
            "tests/uses/test_one_of_each.py",
            "tests/uses/rules/test_recurrent.py",
        ),
    ),
    Mutant(
        "recurrent-state-after-the-step",
        "uses/layer_rules/recurrent.py",
        "new_states, [new_states[0], states[0], *extras, *saved]",
        "new_states, [new_states[0], new_states[0], *extras, *saved]",
        (
            "tests/uses/test_one_of_each.py",
            "tests/uses/rules/test_recurrent.py",
        ),
    ),
    # Aggregations.
    Mutant(
        "clipping-missing-root",
        "aggregations/clipping.py",
        "limit *= tf.math.rsqrt(tf.cast(tf.shape(norms)[1], norms.dtype))",
        "limit /= tf.cast(tf.shape(norms)[1], norms.dtype)",
        ("tests/aggregations/test_clipping.py",),
    ),
    Mutant(
        "clipping-noise-without-the-clip-norm",
        "aggregations/clipping.py",
        "deviation = self.noise_multiplier * self.clip_norm",
        "deviation = self.noise_multiplier",
        ("tests/aggregations/test_clipping.py",),
    ),
    Mutant(
        "aggregation-biased-variance",
        "aggregations/aggregation.py",
        "deviations / tf.maximum(n - 1, 1)",
        "deviations / tf.maximum(n, 1)",
        ("tests/aggregations/test_statistics.py",),
    ),
    Mutant(
        "aggregation-samples-left-out",
        "aggregations/aggregation.py",
        "mean *= tf.square(tf.cast(n, norms.dtype) / count)",
        "mean *= tf.cast(n, norms.dtype) / count",
        ("tests/aggregations/test_statistics.py",),
    ),
    Mutant(
        "gramian-rows-that-are-left-out",
        "aggregations/gramian.py",
        "return weights * rows, finite",
        "return weights * tf.reduce_sum(tf.cast(finite, rows.dtype)), finite",
        (
            "tests/aggregations/test_units.py",
            "tests/aggregations/test_updates.py",
        ),
    ),
    Mutant(
        "of_conflicts-wrong-sign",
        "aggregations/of_conflicts.py",
        "conflicts = tf.minimum(conflicts, 0)",
        "conflicts = tf.maximum(conflicts, 0)",
        (
            "tests/aggregations/test_units.py",
            "tests/aggregations/test_torchjd.py",
        ),
    ),
    Mutant(
        "of_weights-length-of-a-step",
        "aggregations/of_weights.py",
        "current_length + target_length - 2 * target_product",
        "current_length + target_length - target_product",
        (
            "tests/aggregations/test_units.py",
            "tests/aggregations/test_torchjd.py",
        ),
    ),
    Mutant(
        "robust-number-of-neighbours",
        "aggregations/robust.py",
        "present_count - self.n_byzantine - 2",
        "present_count - self.n_byzantine - 1",
        (
            "tests/aggregations/test_units.py",
            "tests/aggregations/test_torchjd.py",
        ),
    ),
    # Modes.
    Mutant(
        "one_step-forgotten-regularisers",
        "modes/one_step.py",
        "gradients = plus(gradients, penalties)",
        "gradients = plus(gradients, [None] * len(penalties))",
        ("tests/modes/test_one_of_each.py", "tests/modes/test_penalties.py"),
    ),
    Mutant(
        "sums-numbers-of-a-sample",
        "modes/sums.py",
        "return value / (term.per_row * self.rows)",
        "return value / self.rows",
        ("tests/modes/test_one_of_each.py", "tests/modes/test_accumulated.py"),
    ),
    Mutant(
        "sums-mean-of-add_loss",
        "modes/sums.py",
        'return {"batch": by_kind(kind, one, share)}',
        'return {"batch": by_kind(kind, one, one)}',
        ("tests/modes/test_one_of_each.py", "tests/modes/test_accumulated.py"),
    ),
    Mutant(
        "microbatches-a-rest-of-one-sample",
        "modes/microbatches.py",
        "remainder > 0,",
        "remainder > 1,",
        (
            "tests/modes/test_one_of_each.py",
            "tests/modes/test_accumulation_steps.py",
        ),
    ),
    Mutant(
        "microbatches-one-step-late",
        "modes/microbatches.py",
        "is_due = accumulator.count >= parting.steps",
        "is_due = accumulator.count > parting.steps",
        (
            "tests/modes/test_one_of_each.py",
            "tests/modes/test_accumulation_steps.py",
        ),
    ),
    Mutant(
        "accumulated-sums-that-stay",
        "modes/accumulated.py",
        "variable.assign(tf.zeros(variable.shape, variable.dtype))",
        "self.count.assign(tf.zeros([], self.count.dtype))",
        (
            "tests/modes/test_one_of_each.py",
            "tests/modes/test_accumulation_tail.py",
        ),
    ),
    # Privacy.
    Mutant(
        "ledger-forgotten-updates",
        "privacy/ledger.py",
        "before.phases, before.mechanism, before.updates",
        "before.phases, before.mechanism, 0",
        ("tests/privacy/test_ledger.py",),
    ),
    Mutant(
        "accounting-missing-root",
        "privacy/accounting.py",
        "noise = event.noise_multiplier / math.sqrt(count)",
        "noise = event.noise_multiplier / count",
        ("tests/privacy/test_accounting.py",),
    ),
    Mutant(
        "mechanism-a-begun-epoch",
        "privacy/mechanism.py",
        "noise = mechanism.noise(0, -(-steps // epoch_steps) * epoch_steps)",
        "noise = mechanism.noise(0, max(steps // epoch_steps, 1) * "
        "epoch_steps)",
        ("tests/privacy/test_accounting.py",),
    ),
    Mutant(
        "private_mean-noise-twice",
        "privacy/private_mean.py",
        "gradients = self.clipping.finish(gradients, n, state)",
        "gradients = self.clipping.finish(gradients, n, state); "
        "gradients = self.clipping.finish("
        "gradients, self.mechanism.batch_size, state)",
        ("tests/privacy/test_faults.py",),
    ),
    Mutant(
        "private_batches-one-example-more",
        "privacy/private_batches.py",
        "by_user[rank < max_per_user]",
        "by_user[rank <= max_per_user]",
        ("tests/privacy/test_sampling.py",),
    ),
    Mutant(
        "clipping_variants-count-not-centred",
        "privacy/clipping_variants.py",
        "tf.convert_to_tensor(below) - seen / 2",
        "tf.convert_to_tensor(below) - seen",
        ("tests/privacy/test_replay.py",),
    ),
    # Influence.
    Mutant(
        "attribution-divided-by-the-tests",
        "influence/attribution.py",
        "return total / np.shape(total)[-1]",
        "return total / np.shape(total)[0]",
        (
            "tests/influence/test_kronecker_blocks.py",
            "tests/influence/test_scores.py",
        ),
    ),
    Mutant(
        "hessian-missing-n",
        "influence/hessian.py",
        "total[part] += n * flatten_gradients(",
        "total[part] += flatten_gradients(",
        (
            "tests/influence/test_kronecker_blocks.py",
            "tests/influence/test_scores.py",
        ),
    ),
    Mutant(
        "value_reader-missing-half",
        "influence/value_reader.py",
        "a - tf.cast(rate * batch_scale / 2, a.dtype) * b",
        "a - tf.cast(rate * batch_scale, a.dtype) * b",
        (
            "tests/influence/test_values_of_one_weight.py",
            "tests/influence/test_sample_values.py",
        ),
    ),
    Mutant(
        "kronecker-missing-2-of-a-regulariser",
        "influence/kronecker.py",
        "return 2 * float(regularizer.l2)",
        "return float(regularizer.l2)",
        (
            "tests/influence/test_kronecker_blocks.py",
            "tests/influence/test_scores.py",
        ),
    ),
    # Gradient health.
    Mutant(
        "figures-cabs-by-the-unbiased-trace",
        "gradient_health/figures.py",
        "observation.trace * (observation.n - 1) / observation.n",
        "observation.trace",
        ("tests/gradient_health/test_instruments.py",),
    ),
    Mutant(
        "figures-length-not-squared",
        "gradient_health/figures.py",
        "noise[2:] *= length**2",
        "noise[2:] *= length",
        ("tests/gradient_health/test_instruments.py",),
    ),
    Mutant(
        "evidence-biased-mean-square",
        "gradient_health/evidence.py",
        "return norm**2 + variance * (n - 1) / n",
        "return norm**2 + variance",
        ("tests/gradient_health/test_advice.py",),
    ),
    # Stalls.
    Mutant(
        "accounting-time-of-the-step",
        "stalls/accounting.py",
        "arrived - np.maximum(requested, step_ended), 0.0",
        "arrived - requested, 0.0",
        ("tests/stalls/test_accounting.py",),
    ),
    Mutant(
        "accounting-waits-of-traced-calls",
        "stalls/accounting.py",
        "+= call.ended - start - counted_waits.sum()",
        "+= call.ended - start",
        ("tests/stalls/test_accounting.py",),
    ),
)


def mutated(mutant):
    """Return the text of the mutant's file with its wrong line."""
    text = (ROOT / "keras_pergrad" / mutant.file).read_text()
    count = text.count(mutant.old)
    if count != 1:
        raise ValueError(
            f"Mutant {mutant.name!r} must be brought up to date: expected its "
            f"`old` once in {mutant.file}. Received: {count} times."
        )
    return text.replace(mutant.old, mutant.new)


def main():
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants",
        description="Which test finds each wrong line?",
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--tier", choices=["quick", "all"], default="quick")
    arguments = parser.parse_args()
    known = {mutant.name: mutant for mutant in MUTANTS}
    unknown = set(arguments.names) - set(known)
    if unknown:
        parser.error(f"expected some of {[*known]}, not {sorted(unknown)}")
    for mutant in MUTANTS:
        mutated(mutant)
    chosen = [known[name] for name in arguments.names or known]
    ids = tests_of_the_tier(arguments.tier)
    killers = []
    print(f"{'mutant':40} seconds  killed by", flush=True)
    for mutant in chosen:
        start = time.monotonic()
        killer = killed_by(mutant, ids)
        seconds = time.monotonic() - start
        killers += [killer] if killer else []
        row = f"{mutant.name:42} {seconds:5.0f}  {killer or 'SURVIVED'}"
        print(row, flush=True)
    print(f"{len(killers)} of {len(chosen)} mutants are killed.")
    if killers and (failed := run_copy(dict.fromkeys(killers))):
        parser.error(f"{failed} fails without any mutant, too")
    sys.exit(len(killers) < len(chosen))


def tests_of_the_tier(tier):
    """Return the ids of a tier, which is chosen from all tests."""
    done = _pytest(ROOT, "--collect-only", "--tier", tier, "tests")
    ids = [
        line for line in done.stdout.splitlines() if line.startswith("tests/")
    ]
    if done.returncode or not ids:
        raise RuntimeError(f"No tests were collected:\n{_said(done)}")
    return ids


def killed_by(mutant, ids):
    """Return the test that fails with a mutant, or None: it has survived."""
    chosen = [i for place in mutant.tests for i in ids if _is_in(i, place)]
    if not chosen:
        raise ValueError(f"Mutant {mutant.name!r} has no tests in this tier.")
    return run_copy(chosen, mutant)


def run_copy(ids, mutant=None):
    """Return the first of the tests that fails in a copy, or None."""
    with tempfile.TemporaryDirectory() as place:
        copy = pathlib.Path(place)
        _copy(copy)
        if mutant is not None:
            file = copy / "keras_pergrad" / mutant.file
            file.write_text(mutated(mutant))
        done = _pytest(copy, "-x", "-p", "tests.mutants", *ids)
    failed = [
        line.split(" - ")[0].split(maxsplit=1)[1]
        for line in done.stdout.splitlines()
        if line.startswith(("FAILED tests/", "ERROR tests/"))
    ]
    # Anything else is no failed test, such as a package without imports.
    if done.returncode not in (0, 1) or bool(failed) != done.returncode:
        name = mutant and mutant.name
        raise RuntimeError(
            f"Tests of mutant {name} did not run:\n{_said(done)}"
        )
    return failed[0] if failed else None


def _is_in(test, place):
    """Whether a test's id is of a file or folder."""
    return test.startswith((f"{place}::", f"{place}/"))


def _copy(target):
    for name in COPIED:
        source = ROOT / name
        if source.is_file():
            shutil.copy(source, target)
            continue
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, target / name, ignore=ignored)


def _pytest(root, *arguments):
    """Run the tests of a directory with the package of that directory."""
    command = [sys.executable, "-m", "pytest", "-m", MARKS, *arguments]
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        command,
        cwd=root,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )


def _said(done):
    return done.stdout[-3000:] + done.stderr[-3000:]


def pytest_collection_finish(session):
    """Make sure that the package of this copy is tested (`-p`)."""
    import keras_pergrad

    tested = pathlib.Path(keras_pergrad.__file__).parents[1].resolve()
    copy = pathlib.Path.cwd().resolve()
    assert tested == copy == session.config.rootpath, f"{tested} is tested"


if __name__ == "__main__":
    main()
