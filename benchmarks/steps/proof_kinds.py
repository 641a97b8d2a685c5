"""The kinds of models that `proof_baseline` looks at, and their lines."""

import contextlib
import dataclasses
import gc
import itertools
import pathlib
import re
import traceback
import typing
import warnings

import keras
import numpy as np
import tensorflow as tf

import keras_pergrad as kpg
from benchmarks.steps import proof_hooks

_PACKAGE = str(pathlib.Path(kpg.__file__).parent)
_MICROBATCH = 2
#: How often the proof of a mode is timed; that of others is like these.
_TIMES = {"explain": 3, "vectorized": 3}


@dataclasses.dataclass
class Made:
    """A model with its data, not compiled with a gradient mode yet.

    Attributes:
        model, x, y, sample_weight: as given to `fit`.
        loss, loss_weights: as given to `compile`.
        jit_compile: whether XLA compiles the step.
    """

    model: keras.Model
    x: typing.Any
    y: typing.Any
    loss: typing.Any = "mse"
    sample_weight: typing.Any = None
    loss_weights: typing.Any = None
    jit_compile: bool = False


def names(set_name):
    """Return the names of the kinds of a set."""
    return list(_KINDS[set_name]())


def rows(set_name, name, modes):
    """Return the lines of a kind, dicts, one for each mode.

    There is none of "accumulated" where all modes before it serve the kind.
    """
    if set_name == "rules":
        return [_rule_row(name)]
    kind = f"{set_name}/{name}"
    with _tidy():
        try:
            if set_name == "hunt":
                made = _drawn(name)
            else:
                made = _KINDS[set_name]()[name]()
            count = _count(made.x)
        except Exception as error:
            row = _row(kind, "made", "invalid", error=error)
            return [row]
        found = []
        for mode in modes:
            served = all(row["verdict"] == "served" for row in found)
            if mode != "accumulated" or not served:
                found.append(_looked_at(kind, made, mode, count=count))
        return found


def _row(kind, mode, verdict, *, error=None, proofs=None, uses=()):
    return {
        "kind": kind,
        "mode": mode,
        "verdict": verdict,
        "message": "" if error is None else f"{error}",
        "types": [] if proofs is None else proofs.types(),
        "uses": list(uses),
        "ms": None if proofs is None else proofs.ms,
        "search_ms": None if proofs is None else proofs.search_ms,
        "tensors": {} if proofs is None else proofs.tensors(),
    }


def _looked_at(kind, made, mode, *, count):
    proofs = proof_hooks.Proofs(_TIMES.get(mode, 0))
    error, uses = None, ()
    try:
        with proofs.open():
            if mode == "explain":
                uses = list(_explained(made, count))
            elif mode == "accumulated":
                microbatches = kpg.Accumulated(microbatch_size=_MICROBATCH)
                _trace(made, microbatches)
            else:
                with proof_hooks.only_proved():
                    _trace(made, mode)
    except proof_hooks.Proved:
        pass
    except Exception as failure:
        error = failure
    verdict = "served" if error is None else _verdict(made, error)
    if any(" refused " in line for line in uses):
        verdict = "refused"
    return _row(kind, mode, verdict, error=error, proofs=proofs, uses=uses)


def _explained(made, count):
    """Yield a line for each layer and variable of `explain`."""
    table = kpg.explain(made.model, count, x=made.x)
    yield f"{table.verdict}, {table.ops} ops"
    for row in table:
        reason = "" if row.reason is None else f": {row.reason}"
        yield (
            f"{row.path} {row.type} {row.served_by} {row.verdict} "
            f"×{row.calls}{reason}"
        )
        for one in row.variables:
            ops = ", ".join(one.ops)
            yield (
                f"  {one.path} {ops}; norms {one.norms}; sum {one.sum}; "
                f"held {one.held_bytes}"
            )


def _trace(made, mode):
    """Trace a training step for any number of samples, and do not run it.

    `mode`: the gradient mode; None: plain Keras.
    """
    model = made.model
    settings = {"loss_weights": made.loss_weights}
    settings["jit_compile"] = made.jit_compile
    if mode is not None:
        if not isinstance(model, kpg.PerGradModel):
            model = kpg.PerGradModel.from_model(model)
        settings["gradient_mode"] = mode
    model.compile(keras.optimizers.SGD(0.1), made.loss, **settings)
    if not model.built:
        model(made.x)
    model.optimizer.build(model.trainable_variables)
    data = [made.x, made.y]
    data += [] if made.sample_weight is None else [made.sample_weight]
    data = tuple(map(_tuples, data))
    step = tf.function(
        model.train_step, autograph=False, jit_compile=made.jit_compile
    )
    specs = tf.nest.map_structure(_open_spec, data)
    try:
        step.get_concrete_function(specs)
    except Exception as error:
        if _is_of_package(error):
            raise
        # The model takes this number of samples alone.
        specs = tf.nest.map_structure(_spec, data)
        step.get_concrete_function(specs)


def _tuples(part):
    return tuple(part) if isinstance(part, list) else part


def _open_spec(value):
    spec = _spec(value)
    return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype)


def _spec(value):
    return tf.TensorSpec.from_tensor(tf.convert_to_tensor(value))


def _count(x):
    return int(np.shape(tf.nest.flatten(x)[0])[0])


def _verdict(made, error):
    if _is_of_package(error) and isinstance(
        error, (ValueError, NotImplementedError)
    ):
        return "refused"
    try:
        _trace(made, None)
    except Exception:
        return "invalid"
    return f"crashed: {type(error).__name__}"


def _is_of_package(error):
    """Whether the package, or `proof_hooks`, has raised an error."""
    if isinstance(error, proof_hooks.Proved):
        return True
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and frames[-1].filename.startswith(_PACKAGE)


@contextlib.contextmanager
def _tidy():
    """Begin anew: names, seed and float type; put these back behind it."""
    keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(7)
    keras.config.disable_traceback_filtering()
    tf.debugging.disable_traceback_filtering()
    policy, floatx = keras.config.dtype_policy(), keras.config.floatx()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            keras.config.set_floatx(floatx)
            keras.config.set_dtype_policy(policy)
            gc.collect(0)


def _set_float(name):
    keras.config.set_floatx(name)
    keras.config.set_dtype_policy(name)


def _mixing():
    from tests.proof import chosen_cases, index_cases, mixing_cases

    del chosen_cases, index_cases  # Imported for the cases that they add.

    def make(build):
        _set_float("float64")
        model, x, y = build()
        return Made(model, x, y, loss=model.loss)

    return {
        f"{kind}/{name}": lambda build=build: make(build)
        for kind, cases in (
            ("mixes", mixing_cases.MIXING),
            ("sound", mixing_cases.SOUND),
        )
        for name, build in cases.items()
    }


def _layers():
    from tests import layer_table

    def make(name):
        is_single = name in layer_table.SINGLE
        _set_float("float32" if is_single else "float64")
        model, _, x = layer_table.model_of(layer_table.CASES[name])
        y = np.zeros([layer_table.N, 2], keras.config.floatx())
        return Made(model, x, y)

    return {
        name: lambda name=name: make(name)
        for name in layer_table.CASES
        if hasattr(keras.layers, name) and name not in layer_table.SKIPPED
    }


def _real():
    from tests import real_models

    def make(build):
        return Made(*build(), real_models.loss())

    builds = dict(real_models.MODELS)
    builds["xlnet_padded"] = real_models.padded_xlnet
    for name in ("resnet50", "mobilenetv3", "densenet121"):
        builds[f"{name}_unfrozen"] = lambda name=name: real_models.unfrozen(
            name
        )
    return {
        name: lambda build=build: make(build) for name, build in builds.items()
    }


def _further():
    from tests.further import refused
    from tests.further.all_kinds import KINDS

    def make(case):
        _set_float(getattr(case, "dtype", "float32"))
        model, x, y = case.make()
        return Made(model, x, y, loss=model.loss)

    return {
        **{k: lambda case=case: make(case) for k, case in KINDS.items()},
        **{
            f"refused/{case.name}": lambda case=case: make(case)
            for case in refused.REFUSED
        },
    }


def _drawn(name):
    """Return the model of a draw, "seed/index"."""
    from tests.hunt import cases

    case = cases.draw(*map(int, name.split("/")))
    space = case.run()
    return Made(
        space["make"](),
        space["x"],
        space["y"],
        loss=space["loss"],
        sample_weight=space["sample_weight"],
        loss_weights=space["loss_weights"],
        jit_compile=case.execution == "xla",
    )


def _rules():
    from tests.proof.rule_cases import CASES

    return CASES


def _rule_row(op_type):
    """Return the line of an op: its types, wherever the samples may be."""
    from tests.proof import test_rule_inputs as trials

    lines, inputs = [], trials.inputs_of(op_type)
    for followed in (1, 2):
        for places in itertools.combinations(range(len(inputs)), followed):
            kinds = [list(trials._places(inputs[k])) for k in places]
            if followed == 1:
                kinds[0] += [(6, kind) for kind in trials.WITHOUT_AXIS]
            trial = trials.Trial(op_type, set(places))
            for chosen in itertools.product(*kinds):
                if len({n for n, _ in chosen}) == 1:
                    given = {k: t for k, (_, t) in zip(places, chosen)}
                    lines.append(_typed(trial, chosen[0][0], given))
    row = _row(f"rules/{op_type}", "types", "typed")
    row["types"] = lines
    return row


def _typed(trial, n, given):
    asked = ", ".join(
        f"{k}: {proof_hooks.text(kind)}" for k, kind in given.items()
    )
    try:
        found = list(map(proof_hooks.text, trial.types(n, given)))
    except Exception as error:
        found = [f"{type(error).__name__}: {error}"]
    found = [re.sub(r"\s+", " ", one) for one in found]
    return f"{n} samples, {asked} → {'; '.join(found)}"


_KINDS = {
    "rules": _rules,
    "mixing": _mixing,
    "layers": _layers,
    "real": _real,
    "further": _further,
}
