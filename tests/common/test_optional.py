"""Libraries that are not installed are named, with the way to install them."""

import sys

import pytest

from keras_pergrad.common.optional import import_extra


@pytest.mark.parametrize(
    ("extra", "way"),
    [
        ("plot", r"pip install 'keras-pergrad\[plot\]'"),
        (None, "install colour"),
    ],
)
def test_a_library_that_is_missing_is_named(extra, way):
    with pytest.raises(ImportError, match=f"Drawing needs colour.*{way}"):
        import_extra("colour.wheel", "Drawing", extra)


def test_a_module_that_is_there_is_returned():
    assert import_extra("os.path", "Drawing", "plot") is sys.modules["os.path"]
