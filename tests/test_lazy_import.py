"""A bare `import keras_pergrad`: what it imports, and what it can load."""

import ast
import pathlib
import subprocess
import sys
import textwrap

import keras
import pytest

import keras_pergrad as kpg

#: Their names are imported in plain sight, so a stub is not needed.
WITHOUT_STUBS = ("runs",)
NAMESPACES = [
    *("aggregations", "callbacks", "diagnose", "extending", "influence"),
    *("modes", "privacy", "trackers", *WITHOUT_STUBS),
]


def _alone(code, *arguments):
    """Return what a process prints that has imported nothing else."""
    code = f"import sys\nimport keras_pergrad as kpg\n{textwrap.dedent(code)}"
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.split()


def test_reports_callbacks_and_private_training_come_when_asked_for():
    """Then every public name can be."""
    *imported, names = _alone("""
    print(*sys.modules)
    print(len([getattr(kpg, n) for n in kpg.__all__]))
    """)
    ours = {name for name in imported if name.startswith("keras_pergrad.")}
    parts = [
        *("callbacks", "checking", "diagnose", "explanation", "extending"),
        *("functions", "gradient_health", "influence", "inputs", "placement"),
        *("privacy.training", "runs", "stalls", "trackers"),
    ]
    lazily = tuple(f"keras_pergrad.{part}" for part in parts)
    assert not [name for name in ours if name.startswith(lazily)]
    assert not [name for name in imported if name.startswith("grain")]
    assert int(names) == len(kpg.__all__)
    for module in (kpg.callbacks, kpg.runs):
        assert set(module.__all__) <= set(dir(module))


def test_pandas_never_comes_before_tensorflow():
    """On Apple silicon the first `fit` would hang."""
    names = _alone("""
    for space in map(kpg.__dict__.get, kpg.__all__):
        [getattr(space, name) for name in getattr(space, "__all__", ())]
    import keras_pergrad.doctor.command, keras_pergrad.__main__
    print(*sys.modules)
    """)
    assert names.index("tensorflow") < [*names, "pandas"].index("pandas")


def test_help_begins_with_all_names():
    missing = [name for name in kpg.__all__ if f"`{name}`" not in kpg.__doc__]
    assert not missing


@pytest.mark.parametrize("name", ["keras_pergrad", *NAMESPACES])
def test_prompts_and_editors_see_public_names_alone(name):
    """What type checkers read in a stub is what is public, and is there."""
    module = getattr(kpg, name, kpg)
    if module is not kpg:
        assert dir(module) == sorted(module.__all__)
    stub = pathlib.Path(module.__file__).with_suffix(".pyi")
    if name not in WITHOUT_STUBS:
        seen = {
            alias.asname or alias.name
            for node in ast.parse(stub.read_text()).body
            for alias in node.names
        }
        assert seen == set(module.__all__)
        assert not [name for name in seen if not hasattr(module, name)]


def test_an_unknown_name_is_an_attribute_error():
    for module in (kpg, kpg.callbacks):
        with pytest.raises(AttributeError, match="no attribute 'PerSampel'"):
            module.PerSampel  # noqa: B018


@pytest.mark.parametrize(
    "place",
    ["callbacks.DataStall", "aggregations.Krum", "influence.fisher"],
)
def test_a_name_of_a_namespace_says_where_it_is(place):
    with pytest.raises(AttributeError, match=rf"it is keras_pergrad\.{place}"):
        getattr(kpg, place.partition(".")[2])


def _functional(*layers):
    inputs = outputs = keras.Input((3,))
    for layer in (*layers, keras.layers.Dense(1)):
        outputs = layer(outputs)
    return keras.Model(inputs, outputs)


@keras.saving.register_keras_serializable("lazy_import")
class OwnNorm(keras.layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.norm = keras.layers.BatchNormalization()

    def build(self, shape):
        self.norm.build(shape)

    def call(self, x, training=None):
        return self.norm(x, training=training)


def _private():
    return kpg.PrivateTraining(
        target_epsilon=8.0,
        delta=1e-3,
        samples=4,
        batch_size=2,
        epochs=1,
    ).gradient_mode


MODES = {
    "batch": lambda: "batch",
    "clipped": lambda: kpg.Vectorized(kpg.ClippedMean(1.0)),
    "automatic": lambda: kpg.PerSample(kpg.privacy.AutomaticClippedMean()),
    "accumulated": lambda: kpg.Accumulated(steps=2),
    "private": _private,
    "upgrad": lambda: kpg.Vectorized("upgrad"),
}


def test_saved_models_are_loaded(tmp_path):
    paths = []
    for name, mode in MODES.items():
        model = kpg.PerGradModel.from_model(_functional())
        model.compile("sgd", "mse", gradient_mode=mode())
        paths.append(tmp_path / f"{name}.keras")
        model.save(paths[-1])
    code = """
    import keras
    for path in sys.argv[1:]:
        model = keras.models.load_model(path)
        print(type(model).__name__, type(model.gradient_mode).__name__)
    """
    found = _alone(code, *paths)
    assert set(found[::2]) == {"FunctionalPerGradModel"}
    assert found[1::2] == [
        "Batch",
        "Vectorized",
        "PerSample",
        "Accumulated",
        "Vectorized",
        "Vectorized",
    ]
