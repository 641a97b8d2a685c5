"""The table of ops: what it says of the entries of outputs is so."""

import dataclasses
import types

import numpy as np
import pytest

from keras_pergrad.keras_internals.graphs.nodes import op_definition
from keras_pergrad.proof import op_facts
from keras_pergrad.proof.op_facts import (
    ADDS_UP,
    ARRANGES,
    FACTS,
    IS_CONSTANT,
    JOINS,
    LINEAR,
    MOVES,
    REPEATS,
    SUMS,
    ops_with,
    source_of,
)
from tests.proof.rule_cases import CASES
from tests.proof.test_rule_inputs import UNTRIED, Trial, inputs_of

#: Ops of the table for which there is no case, beside those of `UNTRIED`.
WITHOUT_CASE = {"Fill"}
TRIED = ops_with(MOVES | JOINS | LINEAR | SUMS | IS_CONSTANT)


def _trial(op_type, every=False):
    """Return the trial of an op that is fed its source, or all inputs."""
    inputs = enumerate(inputs_of(op_type))
    numbers = {k for k, given in inputs if given.array.dtype == float}
    source = source_of(types.SimpleNamespace(type=op_type))
    return Trial(op_type, numbers if every else {source})


def _entries(arrays):
    return np.sort(np.concatenate([np.ravel(a) for a in arrays]))


def _faults(op_type):
    """Yield what an op does not do, though the table says so."""
    facts = FACTS[op_type]
    trial = _trial(op_type)
    ((place, given),) = trial.given.items()
    found = trial.run({place: given.array})
    entries, source = _entries(found), _entries([given.array])
    if facts.has(MOVES) and not np.isin(entries, source).all():
        yield "has entries of its own"
    if facts.has(REPEATS) and not np.isin(source, entries).all():
        yield "leaves entries out"
    if facts.has(ARRANGES) and not np.array_equal(entries, source):
        yield "has not each entry once"
    if facts.has(IS_CONSTANT):
        other = trial.run({place: given.other})
        if not np.array_equal(entries, _entries(other)):
            yield "is not constant"
    if facts.has(ADDS_UP):
        added = _entries(trial.run({place: np.ones_like(given.array)}))
        if not added.all() or np.ptp(added):
            yield "does not add entries up"
    if facts.has(JOINS | SUMS):
        trial = _trial(op_type, every=True)
    if facts.has(JOINS):
        arrays = {k: g.array for k, g in trial.given.items()}
        joined = _entries(arrays.values())
        if not np.array_equal(_entries(trial.run(arrays)), joined):
            yield "has not the entries of all"
    is_number = given.array.dtype.kind in "fc"
    if facts.has(LINEAR | SUMS) and is_number and not _is_linear(trial):
        yield "is not linear"


def _is_linear(trial):
    first = {k: g.array for k, g in trial.given.items()}
    second = {k: g.other for k, g in trial.given.items()}
    both = {
        k: (2 * first[k] - second[k]).astype(a.dtype) for k, a in first.items()
    }
    runs = map(trial.run, (first, second, both))
    return all(
        np.allclose(2 * np.asarray(a) - np.asarray(b), c, rtol=1e-5, atol=1e-5)
        for a, b, c in zip(*runs)
    )


def test_the_table_has_ops_of_tensorflow_once():
    names = " ".join(op_facts._TABLE).split()
    assert len(names) == len(set(names))
    unknown = {name for name in names if op_definition(name) is None}
    # Newer than the oldest TensorFlow, or loaded with a kernel alone.
    assert unknown <= {"XlaDynamicSlice"}


def test_each_op_that_moves_entries_has_a_case_or_a_reason():
    assert set(CASES) | set(UNTRIED) | WITHOUT_CASE >= TRIED


@pytest.mark.parametrize("op_type", sorted(TRIED & set(CASES)))
def test_entries_are_as_the_table_says(op_type):
    assert not list(_faults(op_type))


@pytest.mark.parametrize(
    ("op_type", "traits"),
    [
        ("Cumsum", ARRANGES),
        ("Slice", REPEATS),
        ("Square", LINEAR),
        ("Pad", ADDS_UP),
        ("Mul", SUMS),
        ("Select", JOINS),
        ("Exp", IS_CONSTANT),
    ],
)
def test_a_trait_that_an_op_has_not_is_found(monkeypatch, op_type, traits):
    wrong = dataclasses.replace(FACTS[op_type], traits=traits)
    monkeypatch.setitem(FACTS, op_type, wrong)
    assert list(_faults(op_type))
