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
    tests: list[str]


#: File of the package → its tests, and for each mutant the text that stands
#: in it once, and what replaces it.
PLANTED = {
    "factors/full.py": {
        "tests": ["factors/test_every_factor.py"],
        "wrong-axis": (
            "tf.square(tf.reduce_sum(self.gradients, 0))",
            "tf.square(tf.reduce_sum(self.gradients, 1))",
        ),
    },
    "factors/outer.py": {
        "tests": ["factors/test_every_factor.py"],
        "forgotten-weight": ("x *= expand(weights, x)", "x *= 1"),
    },
    "factors/chunks.py": {
        "tests": ["factors/test_every_factor.py"],
        "last-chunk-alone": (
            "return k + 1, total + chunk_sum(*parts)",
            "return k + 1, chunk_sum(*parts)",
        ),
    },
    "factors/joined.py": {
        "tests": ["factors/test_joined.py", "factors/test_every_factor.py"],
        "cross-term-once": (
            "rounded_up(squares + 2 * cross, 2 * squares, b)",
            "rounded_up(squares + cross, 2 * squares, b)",
        ),
        "products-not-turned": (
            "+ tf.transpose(other._cross(self))",
            "+ other._cross(self)",
        ),
    },
    "factors/hashed_ids.py": {
        "tests": ["factors/test_rows.py", "factors/test_every_factor.py"],
        "pairs-of-equal-ids": (
            "is_repeated = counts > 1",
            "is_repeated = counts > 2",
        ),
    },
    "factors/rows.py": {
        "tests": ["factors/test_rows.py", "factors/test_every_factor.py"],
        "products-not-turned": (
            "return tf.transpose(products)",
            "return products",
        ),
    },
    "factors/patches.py": {
        "tests": ["factors/test_every_factor.py"],
        "forgotten-weight": ("small *= expand(weights, small)", "small *= 1"),
    },
    "factors/windows.py": {
        "tests": ["factors/test_patches.py"],
        "odd-padding-in-front": (
            "leading_zeros = zeros // 2",
            "leading_zeros = zeros - zeros // 2",
        ),
    },
    "factors/blocks.py": {
        "tests": ["factors/test_every_factor.py"],
        "missing-squares": (
            "x, dz = (tf.square(t[:, :, 0]) for t in (self.x, self.dz))",
            "x, dz = (t[:, :, 0] for t in (self.x, self.dz))",
        ),
    },
    "factors/adapted.py": {
        "tests": ["factors/test_every_factor.py"],
        "scale-once-in-a-square": (
            "return self._changed(self._changed(self.factor.sum_of_squares()))",
            "return self._changed(self.factor.sum_of_squares())",
        ),
    },
    "factors/columns.py": {
        "tests": ["factors/test_every_factor.py"],
        "order-of-columns": (
            "columns = tf.split(direction, self.widths(), -1)",
            "columns = tf.split(direction, self.widths(), -1)[::-1]",
        ),
    },
    "influence/with_bias.py": {
        "tests": ["influence/test_kronecker_blocks.py"],
        "row-of-the-bias": (
            "Outer(factor.x + tf.cast(inputs[-1], factor.x.dtype), factor.dz)",
            "Outer(factor.x, factor.dz)",
        ),
    },
    "influence/projection_sides.py": {
        "tests": ["influence/test_projection.py"],
        "missing-root": (
            "np.float32(1 / math.sqrt(self.size))",
            "np.float32(1 / self.size)",
        ),
    },
    "uses/op_rules.py": {
        "tests": [
            "uses/test_one_of_each.py",
            "uses/test_own_layers.py",
            "modes/test_one_of_each.py",
            "modes/test_precision.py",
        ],
        "sign-of-a-difference": ('"Sub": (1, -1)', '"Sub": (1, 1)'),
        "loss-scale-the-other-way": (
            "return gradient if scale is None else gradient / tf.cast(scale",
            "return gradient if scale is None else gradient * tf.cast(scale",
        ),
    },
    "uses/contraction_rules.py": {
        "tests": ["uses/test_one_of_each.py", "uses/rules/test_einsum.py"],
        "inverse-order": (
            "perm = [labels.index(c) for c in target]",
            "perm = [list(target).index(c) for c in labels]",
        ),
    },
    "uses/convolution_rules.py": {
        "tests": ["uses/test_one_of_each.py", "uses/rules/test_convolution.py"],
        "odd-padding-in-front": (
            "leading_zeros = at_least_zero(zeros) // 2",
            "leading_zeros = (at_least_zero(zeros) + 1) // 2",
        ),
    },
    "uses/layer_rules/cells.py": {
        "tests": ["uses/test_one_of_each.py", "uses/rules/test_recurrent.py"],
        "forgotten-forget-gate": (
            "return dz, [self.state_gradient(dz), dc * f]",
            "return dz, [self.state_gradient(dz), dc]",
        ),
    },
    "uses/layer_rules/recurrent.py": {
        "tests": ["uses/test_one_of_each.py", "uses/rules/test_recurrent.py"],
        "forgotten-mask": (
            "dz = tf.where(items[-1], dz, tf.zeros_like(dz))",
            "dz = tf.identity(dz)",
        ),
        "state-after-the-step": (
            "new_states, [new_states[0], states[0], *extras, *saved]",
            "new_states, [new_states[0], new_states[0], *extras, *saved]",
        ),
    },
    "aggregations/clipping.py": {
        "tests": ["aggregations/test_clipping.py"],
        "missing-root": (
            "limit *= tf.math.rsqrt(tf.cast(tf.shape(norms)[1], norms.dtype))",
            "limit /= tf.cast(tf.shape(norms)[1], norms.dtype)",
        ),
        "noise-without-the-clip-norm": (
            "deviation = self.noise_multiplier * self.clip_norm",
            "deviation = self.noise_multiplier",
        ),
    },
    "aggregations/statistics.py": {
        "tests": ["aggregations/test_statistics.py"],
        "biased-variance": (
            "deviations / tf.maximum(n - 1, 1)",
            "deviations / tf.maximum(n, 1)",
        ),
        "samples-left-out": (
            "mean *= tf.square(tf.cast(n, norms.dtype) / count)",
            "mean *= tf.cast(n, norms.dtype) / count",
        ),
    },
    "multitask/gramian.py": {
        "tests": ["multitask/test_units.py", "multitask/test_updates.py"],
        "rows-that-are-left-out": (
            "return weights * rows, finite",
            "return weights * tf.reduce_sum(tf.cast(finite, rows.dtype)), "
            "finite",
        ),
    },
    "multitask/pcgrad.py": {
        "tests": ["multitask/test_units.py", "multitask/test_torchjd.py"],
        "wrong-sign": (
            "conflicts = tf.minimum(conflicts, 0)",
            "conflicts = tf.maximum(conflicts, 0)",
        ),
    },
    "multitask/mgda.py": {
        "tests": ["multitask/test_units.py", "multitask/test_torchjd.py"],
        "length-of-a-step": (
            "current_length + target_length - 2 * target_product",
            "current_length + target_length - target_product",
        ),
    },
    "multitask/krum.py": {
        "tests": ["multitask/test_units.py", "multitask/test_torchjd.py"],
        "number-of-neighbours": (
            "present_count - self.n_byzantine - 2",
            "present_count - self.n_byzantine - 1",
        ),
    },
    "modes/one_step.py": {
        "tests": ["modes/test_one_of_each.py", "modes/test_penalties.py"],
        "forgotten-regularisers": (
            "gradients = plus(gradients, penalties)",
            "gradients = plus(gradients, [None] * len(penalties))",
        ),
    },
    "modes/sums.py": {
        "tests": ["modes/test_one_of_each.py", "modes/test_accumulated.py"],
        "numbers-of-a-sample": (
            "return value / (term.per_row * self.rows)",
            "return value / self.rows",
        ),
        "mean-of-add_loss": (
            "else loss * (rows / self.rows)",
            "else loss",
        ),
    },
    "modes/microbatches.py": {
        "tests": [
            "modes/test_one_of_each.py",
            "modes/test_accumulation_steps.py",
        ],
        "a-rest-of-one-sample": ("remainder > 0,", "remainder > 1,"),
        "one-step-late": (
            "is_due = accumulator.count >= parting.steps",
            "is_due = accumulator.count > parting.steps",
        ),
    },
    "modes/accumulated.py": {
        "tests": [
            "modes/test_one_of_each.py",
            "modes/test_accumulation_tail.py",
        ],
        "sums-that-stay": (
            "variable.assign(tf.zeros(variable.shape, variable.dtype))",
            "self.count.assign(tf.zeros([], self.count.dtype))",
        ),
    },
    "privacy/ledger.py": {
        "tests": ["privacy/test_ledger.py"],
        "forgotten-updates": (
            "before.phases, before.phase, before.updates",
            "before.phases, before.phase, 0",
        ),
    },
    "privacy/accounting.py": {
        "tests": ["privacy/test_accounting.py"],
        "missing-root": (
            "noise = event.noise_multiplier / math.sqrt(count)",
            "noise = event.noise_multiplier / count",
        ),
    },
    "privacy/selections.py": {
        "tests": ["privacy/test_accounting.py"],
        "a-begun-epoch": (
            "-(-steps // epoch_steps) * epoch_steps)",
            "max(steps // epoch_steps, 1) * epoch_steps)",
        ),
    },
    "privacy/private_mean.py": {
        "tests": ["privacy/test_training.py"],
        "noise-twice": (
            "gradients = self.clipping.finish(gradients, n, state)",
            "gradients = self.clipping.finish(gradients, n, state); "
            "gradients = self.clipping.finish("
            "gradients, self.mechanism.batch_size, state)",
        ),
    },
    "privacy/users.py": {
        "tests": ["privacy/test_sampling.py"],
        "one-example-more": (
            "by_user[rank < self.most]",
            "by_user[rank <= self.most]",
        ),
    },
    "privacy/clipping_variants.py": {
        "tests": ["privacy/test_replay.py"],
        "count-not-centred": (
            "tf.convert_to_tensor(below) - seen / 2",
            "tf.convert_to_tensor(below) - seen",
        ),
    },
    "influence/attribution.py": {
        "tests": [
            "influence/test_kronecker_blocks.py",
            "influence/test_scores.py",
        ],
        "divided-by-the-tests": (
            "return total / np.shape(total)[-1]",
            "return total / np.shape(total)[0]",
        ),
    },
    "influence/hessian.py": {
        "tests": [
            "influence/test_kronecker_blocks.py",
            "influence/test_scores.py",
        ],
        "missing-n": (
            "total[part] += n * flatten_gradients(",
            "total[part] += flatten_gradients(",
        ),
    },
    "influence/value_reader.py": {
        "tests": ["influence/test_sample_values.py"],
        "missing-half": (
            "a - tf.cast(rate * batch_scale / 2, a.dtype) * b",
            "a - tf.cast(rate * batch_scale, a.dtype) * b",
        ),
    },
    "influence/kronecker.py": {
        "tests": [
            "influence/test_kronecker_blocks.py",
            "influence/test_scores.py",
        ],
        "missing-2-of-a-regulariser": (
            "return 2 * float(regularizer.l2)",
            "return float(regularizer.l2)",
        ),
    },
    "gradient_health/size_tests.py": {
        "tests": ["gradient_health/test_instruments.py"],
        "cabs-by-the-unbiased-trace": (
            "* (observation.samples - 1) / observation.samples",
            "* 1.0",
        ),
    },
    "gradient_health/last_update.py": {
        "tests": ["gradient_health/test_instruments.py"],
        "length-not-squared": ("noise[2:] *= length**2", "noise[2:] *= length"),
    },
    "gradient_health/evidence.py": {
        "tests": ["gradient_health/test_advice.py"],
        "mean-of-the-noise-scales": (
            "readings[-1].samples * len(ratios) / sum(ratios)",
            "readings[-1].samples * sum(1 / r for r in ratios) / len(ratios)",
        ),
    },
    "stalls/accounting.py": {
        "tests": ["stalls/test_accounting.py"],
        "time-of-the-step": (
            "arrived - np.maximum(requested, step_ended), 0.0",
            "arrived - requested, 0.0",
        ),
        "waits-of-traced-calls": (
            "unsteady -= waits[is_stall & traced].sum()",
            "unsteady -= 0.0",
        ),
    },
}
MUTANTS = tuple(
    Mutant(f"{pathlib.Path(file).stem}-{name}", file, *texts, tests)
    for file, planted in PLANTED.items()
    for tests in [[f"tests/{place}" for place in planted["tests"]]]
    for name, texts in planted.items()
    if name != "tests"
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
