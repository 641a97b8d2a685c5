"""Every class in `keras.layers` is exact, or refused: none is silently wrong.

`python docs/make_layer_table.py` writes what is found here into the docs.
"""

import pytest

from tests import layer_table

pytestmark = pytest.mark.slow

NAMES = layer_table.names()


def _documented():
    """The rows of docs/layers.md by the name of the class."""
    return layer_table.read(layer_table.PAGE.read_text())


@pytest.mark.parametrize("name", NAMES)
def test_is_exact_or_refused(name):
    row = layer_table.examine(name)
    assert row == _documented()[name]


def test_the_page_is_that_of_its_rows():
    rows = sorted(_documented().values(), key=lambda row: row.name)
    assert layer_table.page(rows) == layer_table.PAGE.read_text()


def test_every_class_has_a_case_or_a_reason():
    known = set(layer_table.CASES) | set(layer_table.SKIPPED)
    assert set(NAMES) <= known, "add a case to tests/layer_table.py"
    assert not set(layer_table.CASES) & set(layer_table.SKIPPED)
    assert set(NAMES) <= set(_documented())


@pytest.mark.parametrize("name", ["RandAugment", "AugMix"])
def test_layers_that_sometimes_mix_images_are_found(name):
    if name not in NAMES:
        pytest.skip(f"this Keras has no {name}")
    with pytest.raises(AssertionError):
        layer_table.assert_images_apart(layer_table.CASES[name].make)
