import pytest

from keras_pergrad.doctor.versions import check, numbers

GOOD = {
    "tensorflow": "2.19.1",
    "keras": "3.10.0",
    "numpy": "2.1.3",
    "tensorflow-metal": "1.2.0",
    "tensorflow-metal-plugin": None,
}
COMMUNITY = {"tensorflow-metal": None, "tensorflow-metal-plugin": "0.4.1"}
MAC = ("Darwin", "arm64")


def errors(python=(3, 12), system=MAC, **versions):
    found = check({**GOOD, **versions}, python, system)
    return {f.subject: f for f in found if f.level == "error"}


def test_a_good_pair_has_no_errors():
    assert errors() == {}


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
    found = errors(**versions)
    assert ("Metal" not in found) == loads
    if not loads:
        assert "tensorflow>=2.18,<2.20" in found["Metal"].fix
        assert metal in found["Metal"].message


def test_a_mac_without_metal_is_told_how_to_get_it():
    versions = {**GOOD, "tensorflow-metal": None}
    [note] = [f for f in check(versions, (3, 12), MAC) if f.level == "note"]
    assert "keras-pergrad[metal]" in note.fix
    other = check(versions, (3, 12), ("Linux", "x86_64"))
    assert [f for f in other if f.subject == "Metal"] == []


def test_an_unknown_plugin_is_a_warning():
    found = check({**GOOD, "tensorflow-metal": "9.0"}, (3, 12), MAC)
    assert [f.level for f in found if f.subject == "Metal"] == ["warning"]


def metal(**versions):
    found = check({**GOOD, **versions}, (3, 13), MAC)
    return [f for f in found if f.subject == "Metal"]


def test_the_communitys_plugin_comes_with_a_warning():
    [found] = metal(**COMMUNITY, tensorflow="2.21.0")
    assert found.level == "warning"
    assert "NaN" in found.message
    assert "check_gradients" in found.fix


def test_the_communitys_plugin_fits_one_tensorflow():
    [found] = metal(**COMMUNITY, tensorflow="2.20.0")
    assert found.level == "error"
    assert "tensorflow==2.21" in found.fix
    [older] = metal(**{**COMMUNITY, "tensorflow-metal-plugin": "0.2.0"})
    assert older.level == "warning"
    assert "0.4.1" in older.fix


def test_kernels_that_do_not_wait_are_an_error(monkeypatch):
    monkeypatch.setenv("TF_METAL_SYNCHRONOUS", "0")
    found = metal(**COMMUNITY, tensorflow="2.21.0")
    assert [f.level for f in found] == ["warning", "error"]
    assert "unset" in found[1].fix


def test_two_plugins_for_metal_are_an_error():
    [found] = metal(**{"tensorflow-metal-plugin": "0.4.1"})
    assert found.level == "error"
    assert "both" in found.message


def test_old_packages_are_errors():
    assert "3.8" in errors(keras="2.15.0")["Keras"].fix
    assert "2.18" in errors(tensorflow="2.15.0")["TensorFlow"].message
    assert "Python" in errors(python=(3, 9))
    assert "keras>=3.8" in errors(keras=None)["Keras"].fix


def test_no_tensorflow_is_said_once():
    found = errors(tensorflow=None)
    assert set(found) == {"TensorFlow"}
    assert "keras-pergrad[metal]" in found["TensorFlow"].fix


def test_numbers_of_a_version():
    assert numbers("2.18.0rc1") == (2, 18, 0)
    assert numbers("unknown") == ()
