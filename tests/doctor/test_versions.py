import pytest

from keras_pergrad.doctor import versions as versions_module
from keras_pergrad.doctor.versions import check, check_for_metal, numbers

COMMUNITYS = "tensorflow-metal-plugin"
GOOD = {
    "python": "3.12.4",
    "tensorflow": "2.19.1",
    "keras": "3.10.0",
    "numpy": "2.1.3",
    "pandas": None,
    "tensorflow-metal": "1.2.0",
    COMMUNITYS: None,
}
COMMUNITY = {
    "tensorflow": "2.21.0",
    "tensorflow-metal": None,
    COMMUNITYS: "0.4.1",
}
MAC = ("Darwin", "arm64")


def found(level, system=MAC, **versions):
    """The findings of a level, by subject."""
    findings = check({**GOOD, **versions}, system)
    return {f.subject: f for f in findings if f.level == level}


@pytest.mark.parametrize(
    ("tensorflow", "metal", "loads"),
    [
        ("2.18.1", "1.2.0", True),
        ("2.19.1", "1.2.0", True),
        ("2.20.0", "1.2.0", False),
        ("2.21.0", "1.2.0", False),
        ("2.18.0", "1.1.0", False),
        ("2.19.0", "1.0.1", False),
    ],
)
def test_pairs_of_tensorflow_and_metal(tensorflow, metal, loads):
    versions = {"tensorflow": tensorflow, "tensorflow-metal": metal}
    errors = found("error", **versions)
    assert set(errors) == (set() if loads else {"Metal"})
    if not loads:
        assert "tensorflow>=2.18,<2.20" in errors["Metal"].fix
        assert metal in errors["Metal"].message


def test_a_mac_without_metal_is_told_how_to_get_it():
    versions = {**GOOD, "tensorflow-metal": None}
    [note] = found("note", **versions).values()
    assert "keras-pergrad[metal]" in note.fix
    other = check(versions, ("Linux", "x86_64"))
    assert [f for f in other if f.subject == "Metal"] == []


@pytest.mark.parametrize(
    ("versions", "level", "message", "fix"),
    [
        ({"tensorflow-metal": "9.0"}, "warning", "", ""),
        ({COMMUNITYS: "0.4.1"}, "error", "both", ""),
        (COMMUNITY, "warning", "NaN", "check_gradients"),
        (COMMUNITY | {"tensorflow": "2.20.0"}, "error", "", "tensorflow==2.21"),
        (COMMUNITY | {COMMUNITYS: "0.2.0"}, "warning", "", "0.4.1"),
    ],
)
def test_other_plugins_for_metal(versions, level, message, *, fix):
    findings = check({**GOOD, **versions}, MAC)
    [metal] = [f for f in findings if f.subject == "Metal"]
    assert metal.level == level
    assert message in metal.message
    assert fix in metal.fix


def test_kernels_that_do_not_wait_are_an_error(monkeypatch):
    monkeypatch.setenv("TF_METAL_SYNCHRONOUS", "0")
    assert "Metal" in found("warning", **COMMUNITY)
    assert "unset" in found("error", **COMMUNITY)["Metal"].fix


@pytest.mark.parametrize(
    ("versions", "apple", "community"),
    [
        (GOOD, "fits", "does not fit: TensorFlow 2.19.1"),
        (
            {"python": "3.13.1", "tensorflow": "2.21.0", "keras": "3.7.0"},
            "does not fit: Python 3.13.1, TensorFlow 2.21.0, Keras 3.7.0",
            "does not fit: Keras 3.7.0",
        ),
        (COMMUNITY, "does not fit: TensorFlow 2.21.0", "fits"),
        ({"tensorflow": None, "keras": None}, "fits", "fits"),
    ],
)
def test_a_planned_mac(versions, apple, community):
    first, here, second, here_too, *limits = check_for_metal(
        {**GOOD, **versions}
    )
    assert "TensorFlow 2.18 or newer and older than 2.20" in first.message
    assert "Python 3.11 or newer and older than 3.13" in first.message
    assert "keras-pergrad[metal]" in first.fix
    assert "TensorFlow 2.21 or newer and older than 2.22" in second.message
    assert "keras-pergrad[metal-community]" in second.fix
    for finding, judged in ((here, apple), (here_too, community)):
        assert finding.message == judged
        assert (finding.level == "ok") == (judged == "fits")
    said = " ".join(limit.message for limit in limits)
    for fact in "aborts", "XLA", "float64", "pandas":
        assert fact in said


def test_pandas_before_tensorflow_is_warned_of_on_apple_silicon():
    assert "import tensorflow" in found("note", pandas="3.1.1")["pandas"].fix
    for system in (("Linux", "x86_64"), ("Darwin", "x86_64")):
        assert "pandas" not in found("note", system=system, pandas="3.1.1")


def test_nightly_builds_are_packages_too(monkeypatch):
    versions = {"keras-nightly": "3.16.0.dev1", "tf-nightly": "2.23.0.dev1"}
    monkeypatch.setattr(versions_module, "_version", versions.get)
    here = versions_module.installed()
    assert (here["keras"], here["tensorflow"]) == ("3.16.0.dev1", "2.23.0.dev1")


def test_old_and_missing_packages_are_errors():
    assert "3.8" in found("error", keras="2.15.0")["Keras"].fix
    old = found("error", tensorflow="2.15.0")
    assert "2.18" in old["TensorFlow"].message
    assert "Python" in found("error", python="3.9.1")
    assert "keras>=3.8" in found("error", keras=None)["Keras"].fix
    # Said once.
    errors = found("error", tensorflow=None)
    assert set(errors) == {"TensorFlow"}
    assert "keras-pergrad[metal]" in errors["TensorFlow"].fix


def test_numbers_of_a_version():
    assert numbers("2.18.0rc1") == (2, 18, 0)
    assert numbers("unknown") == ()
