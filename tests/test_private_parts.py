"""What is left where Keras or TensorFlow lack a private name: all else.

Modules are missing in a process of its own, before the package is imported.
Methods and attributes are hidden from the code of this package alone, as if
they had another name there: Keras itself goes on.
"""

import subprocess
import sys
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.models.functional import Functional
from tensorflow.python.data.ops.structured_function import (
    StructuredFunctionWrapper,
)

import keras_pergrad as kpg
from keras_pergrad.keras_internals.data import sources
from keras_pergrad.keras_internals.models import layers
from keras_pergrad.privacy.adapted_layers import adapted_layers
from tests.models.making import compiled, net, trained

X, Y = np.ones((4, 3), "float32"), np.zeros((4, 1), "float32")
#: The private modules that only reports and callbacks need.
MODULES = [
    "keras.src.utils.rng_utils",
    "tensorflow.core.framework.model_pb2",
    "tensorflow.python.framework.kernels",
]
START = """
import importlib.abc, re, sys
import keras, numpy as np, tensorflow as tf

class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

for name in MODULES:
    package, _, last = name.rpartition(".")
    if sys.modules.pop(name, None):
        delattr(sys.modules[package], last)
sys.meta_path.insert(0, Hidden())

import keras_pergrad as kpg

x, y = np.ones((4, 3), "float32"), np.zeros((4, 1), "float32")

def model(mode="vectorized"):
    net = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    made = kpg.PerGradModel.from_model(net)
    made.compile("sgd", "mse", gradient_mode=mode)
    return made

def says(name, action):
    try:
        action()
    except ImportError as error:
        assert re.search(name, str(error)), f"{name} is not in: {error}"
    else:
        raise AssertionError(f"nothing was said of {name}")
"""


def _run(code):
    code = f"MODULES = {MODULES!r}\n{START}\n{textwrap.dedent(code)}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_modes_work_where_modules_of_reports_are_missing():
    _run(
        """
        clipped = kpg.Vectorized(kpg.ClippedMean(1.0))
        for mode in ("vectorized", "per_sample", "accumulated", clipped):
            model(mode).fit(x, y, batch_size=4, verbose=0)
        kpg.per_sample_norms(model(), x, y)
        kpg.callbacks.GradientVariance, kpg.explain, kpg.PrivateTraining
        says("kernels", lambda: kpg.callbacks.DevicePlacement)
        says("kernels", lambda: kpg.diagnose.predict_placement)
        says("model_pb2", lambda: kpg.callbacks.DataStall)
        says("model_pb2", lambda: kpg.diagnose.profile_pipeline)
        variance = kpg.callbacks.GradientVariance(log_dir="unused")
        says("rng_utils", lambda: model().fit(
            x, y, verbose=0, callbacks=[variance]
        ))
        """
    )


class _Renamed:
    """Hides an attribute of a class from the code of this package."""

    def __init__(self, name, original):
        self._name, self._original = name, original

    def __get__(self, thing, cls):
        asking = sys._getframe(1).f_globals["__name__"]
        if asking.startswith("keras_pergrad"):
            raise AttributeError(f"{cls.__name__} has no {self._name!r}")
        if thing is not None and self._name in vars(thing):
            return vars(thing)[self._name]
        if self._original is None:
            raise AttributeError(self._name)
        return self._original.__get__(thing, cls)

    def __set__(self, thing, value):
        vars(thing)[self._name] = value

    def __delete__(self, thing):
        del vars(thing)[self._name]


def _model(mode="vectorized"):
    return compiled(net(shape=(3,), units=1, cls=kpg.PerGradModel), mode)


def _adapted():
    words = keras.layers.TextVectorization()
    words.adapt(np.array(["a b", "c"]))
    return words


def _privately(layer):
    model = keras.Model()
    model.layer = layer
    return list(adapted_layers(model, ()))


def _owner(cls, name):
    """Return the class that gives another, or it itself, an attribute."""
    return next(kind for kind in cls.__mro__ if name in vars(kind))


_Batched = type(tf.data.Dataset.range(2).batch(2))
_Trainer = _owner(keras.Model, "_resolve_auto_jit_compile")


#: Private name → the class that has it, and a report that needs it.
CASES = {
    "Trainer._compile_config": (
        _Trainer,
        lambda: kpg.diagnose.predict_placement(_model(), X, Y),
    ),
    "Trainer._resolve_auto_jit_compile": (
        _Trainer,
        lambda: kpg.explain(_model(), 4, jit_compile="auto"),
    ),
    "Layer._layers": (keras.Layer, lambda: kpg.explain(_model(), 4)),
    "Functional._inputs_struct": (Functional, lambda: kpg.explain(_model(), 4)),
    "TextVectorization._lookup_layer": (
        keras.layers.TextVectorization,
        lambda: _privately(_adapted()),
    ),
    "IndexLookup._has_input_vocabulary": (
        keras.layers.StringLookup.__mro__[1],
        lambda: _privately(_adapted()),
    ),
    "UnaryDataset._inputs": (_owner(_Batched, "_inputs"), lambda: _profile()),
    "DatasetV2._functions": (tf.data.Dataset, lambda: _profile()),
}


def _profile():
    data = tf.data.Dataset.from_tensor_slices((X, Y)).map(lambda x, y: (x, y))
    kpg.diagnose.profile_pipeline(data.batch(2), batches=2)


@pytest.mark.parametrize("name", CASES)
def test_modes_work_where_a_report_lacks_a_name(name, monkeypatch):
    cls, report = CASES[name]
    last = name.rpartition(".")[2]
    renamed = _Renamed(last, cls.__dict__.get(last))
    monkeypatch.setattr(cls, last, renamed, raising=False)
    model = _model(kpg.Vectorized(kpg.ClippedMean(1.0)))
    trained(model, X, Y)
    with pytest.raises((AttributeError, ValueError), match=last):
        report()


def _record(folder):
    watching = kpg.callbacks.GradientVariance(log_dir=folder)
    trained(_model(), X, Y, callbacks=[watching])


def _grain():
    grain = pytest.importorskip("grain")
    sources.read_threads(grain.MapDataset.range(4).to_iter_dataset())


def _interleaved():
    grain = pytest.importorskip("grain")
    numbers = [grain.MapDataset.range(4).to_iter_dataset()] * 2
    return grain.experimental.InterleaveIterDataset(numbers, cycle_length=2)


def _loader():
    grain = pytest.importorskip("grain")
    sampler = grain.samplers.SequentialSampler(4)
    return grain.DataLoader(data_source=range(4), sampler=sampler)


def _grain_class(name):
    if name == "_datasets":
        return type(_interleaved())
    if name == "_multiprocessing_options":
        return type(_loader())
    kinds = pytest.importorskip("grain").MapDataset.__mro__
    if name == "_parents":
        return kinds[1]
    return type(kinds[0].range(1).to_iter_dataset())


PLAIN = tf.data.Dataset.range(2)
#: Private name that some objects have → the class that has it, and what asks.
OPTIONAL = {
    "_map_func": (tf.data.Dataset, lambda _: _profile()),
    "_func": (StructuredFunctionWrapper, lambda _: _profile()),
    "_buffer_size": (tf.data.Dataset, lambda _: sources.buffer_size(PLAIN)),
    "_batch_size": (tf.data.Dataset, lambda _: sources.batch_size(PLAIN)),
    "_impl": (tf.data.Dataset, lambda _: sources.inner_reader(PLAIN)),
    "_fn_kwargs": (keras.losses.MeanSquaredError.__mro__[1], _record),
    "_parents": (_grain_class, lambda _: _grain()),
    "_read_options": (_grain_class, lambda _: _grain()),
    "_datasets": (
        _grain_class,
        lambda _: sources.worker_processes(_interleaved()),
    ),
    "_multiprocessing_options": (
        _grain_class,
        lambda _: sources.worker_processes(_loader()),
    ),
}


@pytest.mark.parametrize("name", OPTIONAL)
def test_what_is_lost_with_a_name_is_said(name, monkeypatch, tmp_path):
    cls, ask = OPTIONAL[name]
    cls = cls if isinstance(cls, type) else cls(name)
    monkeypatch.setattr(layers, "_SEEN", set())
    renamed = _Renamed(name, cls.__dict__.get(name))
    monkeypatch.setattr(cls, name, renamed, raising=False)
    with pytest.warns(UserWarning, match=rf"has no \w+\.{name}, so that"):
        ask(tmp_path)


def test_nothing_is_said_where_all_names_are_there(monkeypatch, tmp_path):
    monkeypatch.setattr(layers, "_SEEN", set())
    _profile()
    _record(tmp_path)
    assert sources.buffer_size(PLAIN) is None
    assert sources.batch_size(PLAIN) is None
    assert sources.inner_reader(PLAIN) == (None, None)
    _grain()
    assert sources.worker_processes(_interleaved()) == 2
    assert sources.worker_processes(_loader()) == 0
