import getpass
import pathlib
import signal

import pytest

from keras_pergrad.doctor.command import explain, without_paths


@pytest.mark.parametrize(
    ("output", "explanation", "fix"),
    [
        (
            "NotFoundError: dlopen(/Users/ann/v/tensorflow-plugins/"
            "libmetal_plugin.dylib, 0x0006): Library not loaded: "
            "@rpath/_pywrap_tensorflow_internal.so",
            "TensorFlow 2.20 and later have renamed",
            "<2.20",
        ),
        (
            "NotFoundError: dlopen(/Users/ann/v/tensorflow-plugins/"
            "libmetal_plugin.dylib, 0x0006): Symbol not found: __ZN10tenso",
            "does not fit this TensorFlow",
            "tensorflow-metal==1.2.0",
        ),
        (
            "ImportError: numpy.core.multiarray failed to import",
            "this NumPy does not fit",
            "force-reinstall",
        ),
        (
            "ModuleNotFoundError: No module named 'tensorflow'",
            "not installed",
            "pip install",
        ),
        (
            "Check failed: INTERNAL: platform is already registered with "
            'name: "METAL"',
            "loaded twice",
            "TF_PLUGGABLE_DEVICE_LIBRARY_PATH",
        ),
    ],
)
def test_known_failures_are_explained(output, explanation, fix):
    why, what, said = explain(output, 1)
    assert explanation in why
    assert fix in what
    assert "/Users" not in said


def test_signals_are_explained():
    assert "instructions" in explain("", -signal.SIGILL)[0]
    assert "crashed" in explain("", -signal.SIGSEGV)[0]
    assert "code 7" in explain("something", 7)[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Not a directory: '/Users/ann'", "Not a directory: '~'"),
        ("no /home/ann: stop", "no ~: stop"),
        ("/Users/Ann Lee", "~"),
        ("/Users/Ann Lee/v/lib.so: not found", ".../lib.so: not found"),
        ("/home/ann/My Work/x/lib.so", ".../lib.so"),
        ("/Volumes/Ann Lee/lib.so", ".../lib.so"),
        (r"C:\Users\Ann Lee\v\x.dll", r"...\x.dll"),
        (r"'C:\\Users\\Ann Lee\\v\\x.dll'", r"'...\x.dll'"),
        (r"in C:\Users\Ann Lee", "in ~"),
        ("C:/Users/Ann Lee/v/x.dll", ".../x.dll"),
        ("/mnt/c/Users/Ann Lee/x", ".../x"),
        ("/System/Volumes/Data/Users/ann/x.so", ".../x.so"),
        ("from /a/b/c.so to /d/e/f.so", "from .../c.so to .../f.so"),
        ("in '/Users/ann/v/tf/lib.so'", "in '.../lib.so'"),
        ("~/private/model.py:3", ".../model.py:3"),
        ("2.3/4 of @rpath/lib.so", "2.3/4 of @rpath/lib.so"),
    ],
)
def test_paths_are_cut_and_their_ends_kept(text, expected):
    assert without_paths(text) == expected


def test_this_user_is_not_named(monkeypatch):
    home = pathlib.Path("/srv/people/Ann Lee")
    monkeypatch.setattr(pathlib.Path, "home", lambda: home)
    monkeypatch.setattr(getpass, "getuser", lambda: "alee")
    said = without_paths(
        "/srv/people/Ann Lee: /data/alee and alee's /tmp/of-alee/x of Ann Lee; "
        "stale, /srv/people/ann lee/y z/lib.so"
    )
    assert said == "~: .../... and ...'s .../x of ...; stale, .../lib.so"


def test_without_a_home_paths_are_still_cut(monkeypatch):
    def unknown():
        raise RuntimeError("Could not determine home directory.")

    def nobody():
        raise KeyError("uid not found")

    monkeypatch.setattr(pathlib.Path, "home", unknown)
    monkeypatch.setattr(getpass, "getuser", nobody)
    assert without_paths("/srv/x/lib.so") == ".../lib.so"
    monkeypatch.setattr(pathlib.Path, "home", lambda: pathlib.Path("/"))
    assert without_paths("/srv/x/lib.so") == ".../lib.so"
