"""Old ways of calling: they work, with a warning."""

import pytest

import keras_pergrad as kpg
from keras_pergrad.common.deprecation import former


@former("size", "color", after="continue_from")
def make(name, *, size=1, color=None, continue_from=None):
    return name, size, color, continue_from


def test_new_ways_say_nothing():
    assert make("a", size=2, continue_from=3) == ("a", 2, None, 3)
    assert make(name="a") == ("a", 1, None, None)


def test_positions_that_were_allowed():
    with pytest.warns(
        DeprecationWarning, match=r"make\(\): give size=\.\.\., color=\.\.\. by"
    ):
        assert make("a", 2, "red") == ("a", 2, "red", None)


def test_names_that_were_others():
    with pytest.warns(
        DeprecationWarning, match=r"give continue_from=\.\.\. instead of after="
    ):
        assert make("a", after=5) == ("a", 1, None, 5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_was_wrong_is_wrong():
    with pytest.raises(TypeError, match="multiple values for argument 'size'"):
        make("a", 2, size=3)
    with pytest.raises(TypeError, match=r"multiple .* 'continue_from'"):
        make("a", after=1, continue_from=2)
    with pytest.raises(TypeError, match="positional"):
        make("a", 1, 2, 3)
    with pytest.raises(TypeError, match="colour"):
        make("a", colour=1)


def test_the_warning_points_at_the_caller():
    words = r"ClippedMean\(\): give noise_multiplier="
    with pytest.warns(DeprecationWarning, match=words) as caught:
        kpg.ClippedMean(1.0, 0.5)
    assert caught[0].filename == __file__


def test_an_attribute_that_was_another():
    found = kpg.results.AuditResult(0.5, 1.0, 1e-5, 0.95, 10, {})
    with pytest.warns(DeprecationWarning, match="read .ok instead of .passed"):
        assert found.passed is found.ok is True
