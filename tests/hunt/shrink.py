"""The smallest case that still fails, and a script of it."""

import dataclasses
import inspect

from tests.hunt import cases, heads, judge, oracle

_PLAIN = {
    "kind": "functional",
    "execution": "graph",
    "dtype": "float32",
    "is_broken": False,
    "clips": False,
    "microbatch": None,
    "mode": "vectorized",
    "loss_weights": "None",
    "is_random": False,
}


def failure(verdicts):
    """What makes two failures the same: the check and how it failed."""
    failed = [v for v in verdicts if v.failed]
    return (failed[0].check, failed[0].outcome) if failed else None


def smallest(case, verdict_of=judge.judge, most=60):
    """Takes away from a failing case what it fails without.

    Args:
        case: a `Case` that fails.
        verdict_of: a function of a case that gives its verdicts.
        most: how many cases to try at most.

    Returns:
        The case from which nothing more could be taken.
    """
    wanted = failure(verdict_of(case))
    left = _smaller(case) if wanted else iter(())
    for _ in range(most):
        smaller = next(left, None)
        if smaller is None:
            break
        if failure(verdict_of(smaller)) == wanted:
            case, left = smaller, _smaller(smaller)
    return case


def shrunk(seed, index):
    """A failing draw made small: (index, signature, script)."""
    case = smallest(cases.draw(seed, index))
    verdicts = judge.judge(case)
    name = f"{failure(verdicts)} {signature(case)}"
    return index, name, script(case, verdicts)


def _smaller(case):
    """Yields cases with one thing less."""
    for k in range(len(case.blocks)):
        rest = case.blocks[:k] + case.blocks[k + 1 :]
        yield dataclasses.replace(case, blocks=rest)
    if len(case.outputs) > 1:
        for output in case.outputs:
            yield dataclasses.replace(
                case, outputs=(output,), loss_weights="None"
            )
    if case.weights != "None":
        yield dataclasses.replace(case, weights="None", class_weight="None")
    for name, value in _PLAIN.items():
        if getattr(case, name) != value:
            yield dataclasses.replace(case, **{name: value})
    mse, loss = "keras.losses.MeanSquaredError()", case.outputs[0][1]
    by_loss = case.is_coupled and loss in [head[1] for head in heads.COUPLED]
    if loss != mse and not by_loss:
        targets = f"rng.normal(size=({case.n}, 3))"
        for layer in ("L.Dense(3)(h)", "L.Dense(3)(L.Flatten()(h))"):
            output = (layer, mse, targets)
            yield dataclasses.replace(case, outputs=(output,), weights="None")


def signature(case):
    """What tells one kind of failure from another, as a line."""
    changed = [
        str(getattr(case, name))
        for name, value in _PLAIN.items()
        if getattr(case, name) != value
    ]
    return " ".join([*sorted(case.names()), *changed])


def script(case, verdicts):
    """A script that shows the failure without this package's tests."""
    failed = [v for v in verdicts if v.failed]
    told = "; ".join(f"{v.check}: {v.outcome} {v.detail}" for v in failed)
    told = told.replace('"', "'")
    parts = [
        f'"""{told}"""',
        cases.HEADER,
        f"keras.config.set_floatx({case.floatx!r})",
        f"keras.config.set_dtype_policy({case.dtype!r})",
        f"keras.utils.set_random_seed({case.seed})",
        case.layer_sources(),
        case.source(),
        _training(case),
    ]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _training(case):
    compiled = (
        "model = make()\n"
        f"model.compile(keras.optimizers.SGD({cases.LEARNING_RATE}), loss, "
        "loss_weights=loss_weights, run_eagerly=True)\n"
        "batch = x, y, sample_weight\n"
    )
    if case.asks == "step":
        return compiled + _step(case)
    lines = "found = kpg.per_sample_gradients(model, *batch, "
    lines += f"method={case.mode!r})\n"
    if case.must_refuse or case.is_random:
        lines += (
            "expected = batch_gradient(model, *batch)\n"
            "found = [g if g is None else np.mean(g, 0) for g in found]\n"
        )
    else:
        lines += (
            "expected = list(zip(*contributions(model, *batch, "
            f"copies={case.by_size})))\n"
        )
    lines += (
        "for v, a, b in zip(model.trainable_variables, found, expected):\n"
        "    print(v.path, 'ours:', a, 'expected:', b, sep='\\n')\n"
    )
    return f"{inspect.getsource(oracle)}\n\n{compiled}{lines}"


def _step(case):
    mode = "Vectorized" if case.mode == "vectorized" else "PerSample"
    aggregation = "kpg.ClippedMean(1e-3)" if case.clips else "'mean'"
    mode = f"kpg.{mode}({aggregation})"
    if case.microbatch:
        mode = (
            f"kpg.Accumulated(microbatch_size={case.microbatch}, inner={mode})"
        )
    how = {"eager": "run_eagerly=True", "xla": "jit_compile=True"}
    weighting = "sample_weight=sample_weight"
    if case.class_weight != "None":
        weighting = f"class_weight={case.class_weight}"
    train = f"train_on_batch(x, y, {weighting}, return_dict=True)"
    plain, ours = f"model.{train}", f"ours.{train}"
    broken = "x[0] = np.nan  # Counts as zero.\n" if case.is_broken else ""
    function = ""
    if case.execution == "data set":
        function = inspect.getsource(judge.fit_data_set) + "\n\n"
        plain, ours = (
            f"fit_data_set({net}, x, y, {weighting})"
            for net in ("model", "ours")
        )
    return f"""\
{function}variables = model.weights
start = [np.array(v) for v in variables]
print({plain})
plain = [np.array(v) for v in variables]
for v, value in zip(variables, start):
    v.assign(value)
ours = kpg.PerGradModel.from_model(model)
ours.compile(
    keras.optimizers.SGD({cases.LEARNING_RATE}),
    loss,
    loss_weights=loss_weights,
    gradient_mode={mode},
    {how.get(case.execution, "jit_compile=False")},
)
{broken}print({ours})
for v, a, b in zip(variables, start, plain):
    print(v.path, "Keras:", b - a, "ours:", np.array(v) - a, sep="\\n")
"""
