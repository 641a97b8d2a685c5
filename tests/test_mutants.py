"""Mutants of the arithmetic can be planted; `make mutants` plants them."""

import pytest

from tests.mutants import MUTANTS, ROOT, mutated


def test_each_wrong_line_is_one():
    assert len(MUTANTS) >= 40
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    for mutant in MUTANTS:
        assert mutant.old != mutant.new
        compile(mutated(mutant), mutant.file, "exec")
        assert all((ROOT / place).exists() for place in mutant.tests)


@pytest.mark.parametrize("old", ["no such line", "self"])
def test_what_is_out_of_date_is_named(old):
    mutant = MUTANTS[0]._replace(old=old)
    with pytest.raises(ValueError, match=f"{mutant.name}.*brought up to date"):
        mutated(mutant)
