"""The hunt itself, and a few hundred of its draws."""

import dataclasses
import subprocess
import sys

import pytest

import keras_pergrad as kpg
from tests.hunt import cases, judge, layers, shrink, workers
from tests.hunt.faults import FAULTS
from tests.hunt.planting import Fault, instead
from tests.marks import few

PLAIN = cases.Case(
    seed=5,
    n=4,
    inputs="keras.Input((3,))",
    data="rng.normal(size=(4, 3))",
    blocks=("L.Dense(4, activation='tanh')(h)",),
    outputs=(
        (
            "L.Dense(2)(h)",
            "keras.losses.MeanSquaredError()",
            "rng.normal(size=(4, 2))",
        ),
    ),
    clips=True,
    asks="step",
)

#: Inputs of these are no numbers to multiply: their data.
IDS = {
    "Words": "np.array(['cat', 'dog', 'yak'])[rng.integers(3, size=(4, 3))]",
    "Numbers": "rng.integers(5, size=(4, 3))",
    "IdsTogether": "rng.integers(5, size=(4, 3))",
}


def with_block(block, shape, **changes):
    """The plain case with one layer, on inputs of this shape."""
    layer = "L.Dense(2)(L.Flatten()(h))" if len(shape) > 1 else "L.Dense(2)(h)"
    return dataclasses.replace(
        PLAIN,
        inputs=f"keras.Input({shape})",
        data=f"rng.normal(size={(4, *shape)})",
        blocks=(block,),
        outputs=((layer, *PLAIN.outputs[0][1:]),),
        **changes,
    )


def of_layer(name, form, shape, **changes):
    """The plain case with a layer of `layers` alone."""
    layer = f"{name}({form!r})(h)"
    block = f"Join()({layer if name == 'Two' else f'[{layer}]'})"
    case = with_block(block, shape, by_size=name == "Sized", **changes)
    if name not in IDS:
        return case
    dtype = "string" if name == "Words" else "int32"
    return dataclasses.replace(
        case,
        inputs=f"keras.Input((3,), dtype={dtype!r})",
        data=IDS[name],
        outputs=(("L.Dense(2)(L.Flatten()(h))", *PLAIN.outputs[0][1:]),),
    )


def outcomes(case):
    return {verdict.outcome for verdict in judge.judge(case)}


def test_a_difference_below_the_weights_last_digit_is_none():
    """The samples cancel: a step of 1e-6 from weights of 1, in float32."""
    head = (
        "L.Dense(2, activation='softmax')(h)",
        "keras.losses.CategoricalFocalCrossentropy(reduction='mean')",
        "np.eye(2)[rng.integers(2, size=(4, 3))]",
    )
    case = dataclasses.replace(
        PLAIN,
        seed=2104240667,
        inputs="keras.Input((3,), dtype='int32')",
        data="rng.integers(5, size=(4, 3)) * "
        "(np.arange(3) < rng.integers(1, 4, size=(4, 1)))",
        blocks=(
            "L.Embedding(5, 3, mask_zero=True)(h)",
            "Broadcast('stack')(h)",
            "Attends('per_head')(h)",
        ),
        outputs=(head,),
    )
    assert outcomes(case) == {judge.SERVED}


def test_a_draw_is_the_same_every_time():
    first = [cases.draw(3, k) for k in range(40)]
    assert first == [cases.draw(3, k) for k in range(40)]
    assert len(set(first)) == 40


def test_a_wrong_weight_is_a_difference():
    fault = Fault(
        "twice", kpg.ClippedMean, "weights", lambda w: lambda *a: 2 * w(*a)
    )
    with fault.planted():
        found = {v.check: v.outcome for v in judge.judge(PLAIN)}
    assert found["step"] == judge.DIFFERS
    assert found["loss"] == judge.SERVED
    assert outcomes(PLAIN) == {judge.SERVED}


def test_an_error_that_names_nothing_is_a_crash():
    def fails(right, self, norms):
        raise TypeError("unsupported operand")

    with Fault("", kpg.ClippedMean, "weights", instead(fails)).planted():
        assert outcomes(PLAIN) == {judge.CRASHED}


@pytest.mark.parametrize(
    ("block", "changes", "outcome"),
    [
        ("L.BatchNormalization()(h)", {"is_coupled": True}, judge.REFUSED),
        # What follows the number of samples needs all.
        ("Sized('over_ones')(h)", {"by_size": True}, judge.SERVED),
        (
            "Sized('over_ones')(h)",
            {"by_size": True, "microbatch": 2},
            judge.REFUSED,
        ),
        # Compiled by XLA, Keras's dropout drops others than in a graph.
        *(
            (
                "L.Dropout(0.4)(h)",
                {"is_random": True, "clips": False, "execution": execution},
                judge.SERVED,
            )
            for execution in ("eager", "graph", "data set", "xla")
        ),
    ],
)
def test_outcomes_of_a_layer(block, changes, outcome):
    assert outcomes(with_block(block, (5,), **changes)) == {outcome}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_a_fault_stands_where_it_is_planted(fault):
    def now():
        places = fault.attribute.split()
        if isinstance(fault.owner, dict):
            return [fault.owner[name] for name in places]
        return [getattr(fault.owner, name) for name in places]

    right = now()
    with fault.planted():
        assert not any(a is b for a, b in zip(now(), right, strict=True))
    assert now() == right


def test_a_rule_that_accepts_mixing_is_found():
    (fault,) = (f for f in FAULTS if "softmax" in f.name)
    block = "L.Add()([h, Stops()(Couples('softmax')(h))])"
    layer = "L.Dense(3, activation='tanh')(h)"
    case = dataclasses.replace(PLAIN, blocks=(layer, block), is_coupled=True)
    touched = set()
    with fault.watched(touched):
        assert outcomes(case) == {judge.REFUSED}
    assert touched == {fault.name}
    with fault.planted():
        assert outcomes(case) == {judge.COUPLED}
    assert outcomes(case) == {judge.REFUSED}


def test_a_failure_shrinks_to_what_it_needs():
    case = dataclasses.replace(
        PLAIN,
        blocks=("A()(h)", "B()(h)", "C()(h)"),
        weights="0",
        dtype="float64",
        execution="xla",
    )

    def verdicts(case):
        fails = "B()(h)" in case.blocks and case.dtype == "float64"
        outcome = judge.DIFFERS if fails else judge.SERVED
        return [judge.Verdict("step", outcome)]

    found = shrink.smallest(case, verdicts)
    assert found.blocks == ("B()(h)",)
    assert (found.dtype, found.execution) == ("float64", "graph")
    assert found.weights == "None"
    assert not found.clips


@pytest.mark.slow
@pytest.mark.parametrize("execution", ["graph", "data set"])
@pytest.mark.parametrize("asks", ["step", "gradients"])
def test_a_script_stands_alone(asks, execution, tmp_path):
    case = with_block(
        "Steps('scan')(h)", (3, 2), asks=asks, execution=execution
    )
    verdicts = [judge.Verdict(asks, judge.DIFFERS, "0.5")]
    path = tmp_path / "script.py"
    path.write_text(shrink.script(case, verdicts))
    assert "tests.hunt" not in path.read_text()
    done = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "ours:" in done.stdout


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", sorted(set(layers.FORMS) - {*layers.TOGETHER}))
def test_single_samples_of_every_layer_add_up(name):
    """Plain Keras and the oracle agree: the layer mixes no samples."""
    wrong = {}
    for form in layers.FORMS[name]:
        said = [objection(of_layer(name, form, s)) for s in ((4,), (3, 4))]
        # Many take inputs of one rank only.
        if all(said) or any("add up" in str(text) for text in said):
            wrong[form] = said
    assert not wrong


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", layers.TOGETHER)
def test_samples_of_a_coupled_layer_meet(name):
    """Some do so for some data only."""

    def meets(form, seed):
        case = of_layer(name, form, (4,), is_coupled=True)
        if name != "IdsTogether":
            before = "L.Dense(4, activation='tanh')(h)"
            case = dataclasses.replace(case, blocks=(before, *case.blocks))
        return judge.meets(dataclasses.replace(case, seed=seed))

    assert not [
        form
        for form in layers.FORMS[name]
        if not any(meets(form, seed) for seed in range(6))
    ]


def objection(case):
    """What speaks against a case, or None."""
    try:
        judge.meets(case)
    except judge.Invalid as error:
        return str(error)
    return None


@pytest.mark.parametrize("draws", few([80, 250], (), [80]))
def test_draws_of_a_fixed_seed(draws):
    found = workers.hunt(seed=12, first=0, count=draws, workers=2)
    failed = {
        index: [v for v in verdicts if v.failed]
        for index, verdicts, _ in found
        if any(v.failed for v in verdicts)
    }
    assert not failed, f"python -m tests.hunt 1 --seed 12 --first {min(failed)}"
    counts = workers.outcomes(found)
    assert counts[judge.SERVED] > draws / 2
    assert counts.get(judge.INVALID, 0) < draws / 20
