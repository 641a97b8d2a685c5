"""Examples are taken by position, and what cannot be drawn from says why."""

import json
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_pergrad.privacy.draws import make_key
from tests.models.making import assert_equal
from tests.privacy.tiny import N, X, Y, fit, fitted, model, private

SHUFFLED = np.random.default_rng(1).permutation(N)


def frames():
    """X and Y as a DataFrame and a Series whose labels are in disorder."""
    pandas = pytest.importorskip("pandas")
    x = pandas.DataFrame(X, index=SHUFFLED, columns=list("abc"))
    return x, pandas.Series(Y[:, 0], index=SHUFFLED[::-1])


class Rows:
    """Examples by number, or numbers of `size` by number."""

    def __init__(self, size=None, rows=N, pair=None):
        self.size, self.rows, self.pair = size, rows, pair

    def __len__(self):
        return -(-self.rows // (self.size or 1))

    def __getitem__(self, i):
        if self.size is not None:
            i = slice(self.size * i, self.size * (i + 1))
        x = X[i] if self.pair is None else self.pair([X[i], X[i][..., :2]])
        return x, Y[i]


class Batches(Rows, keras.utils.PyDataset):
    """Inputs of the kind of `pair`, if it is given."""

    def __init__(self, *arguments, **others):
        keras.utils.PyDataset.__init__(self)
        Rows.__init__(self, *arguments, **others)


class PairsInBatches(Batches):
    def __getitem__(self, i):
        return self.pair(super().__getitem__(i))


def indexed():
    return tf.data.Dataset.from_tensor_slices((X, Y))


def mapped(folder):
    np.save(folder / "x.npy", X)
    return np.load(folder / "x.npy", mmap_mode="r")


@pytest.fixture
def batch(training, net):
    """A function of data that returns their batch of a step, or two of it."""
    return lambda *data: training.batches(*data).batch(net.aggregation_state, 2)


def test_sources_give_the_same_batches(training, net, batch, *, tmp_path):
    for source in (Rows(), Batches(7), indexed()):
        assert_equal(batch(source), batch(X, Y))
        data = training.batches(source)
        data.excluded_rows = np.arange(N)
        none = data.batch(net.aggregation_state, 2)
        assert [len(part) for part in none] == [0, 0]
    assert_equal(batch(mapped(tmp_path), Y), batch(X, Y))
    x, _, w = batch({"a": X}, Y, np.linspace(0, 1, N))
    np.testing.assert_array_equal(x["a"], batch(X, Y)[0])
    assert w.dtype == "float32"


def test_data_frames_are_taken_by_position(batch):
    x, y = frames()
    expected = batch(X, Y, Y[:, 0])
    for data in ((x, y, y), (x, Y, y), (X, y.to_frame(), y)):
        assert_equal(map(np.ravel, batch(*data)), map(np.ravel, expected))
    (by_name,) = batch({"a": x["a"], "all": x})
    np.testing.assert_array_equal(by_name["a"], expected[0][:, 0])
    np.testing.assert_array_equal(by_name["all"], expected[0])


def test_sources_train_alike(tmp_path):
    x, y = frames()
    training, nets = private(), []
    for data in ((X, Y), (mapped(tmp_path), Y), (Rows(),), (x, y.to_frame())):
        nets.append(model(training))
        fit(nets[-1], training, data=training.batches(*data))
        assert_equal(nets[-1].get_weights(), nets[0].get_weights())
    data, same = training.batches(x, Y), (x, Y + 0)
    with pytest.warns(UserWarning, match="are the protected examples"):
        fit(nets[-1], training, data=data, validation_data=same)


def test_users_in_a_series():
    pandas = pytest.importorskip("pandas")
    users, rows = np.arange(N) // 4, []
    for ids in (users, pandas.Series(users, index=SHUFFLED)):
        most = np.int64(2)
        training = private(user_ids=ids, samples_per_user=most, batch_size=5)
        assert training.mechanism.examples == N // 2
        json.dumps(training.mechanism.to_dict())  # as it is saved
        rows.append(training.batches(X, Y).users.rows(make_key(3)))
    np.testing.assert_array_equal(*rows)


def test_frames_of_several_kinds_are_refused():
    pandas = pytest.importorskip("pandas")
    x = pandas.DataFrame({"a": np.arange(N), "b": ["u", "v"] * (N // 2)})
    with pytest.raises(ValueError, match=r"of dtypes \['int64', '.*'\]. Conv"):
        private().batches(x, Y)
    text = private().batches({"a": x["a"], "b": x["b"]}, Y)
    assert {s.dtype for s in text.spec[0].values()} == {tf.int64, tf.string}


def of_known_size():
    known = tf.data.experimental.assert_cardinality(N)
    return indexed().filter(lambda x, y: True).apply(known)


BATCHED = (
    r"samples=40. Received: 4, the first of which is of shape \(10, 3\) and "
    r"\(10, 1\). If these are batches: .*before .batch\(\)"
)


@pytest.mark.parametrize(
    ("match", "data"),
    [
        (r"samples=40. Received: 39", lambda: (X[1:], Y[1:])),
        ("same number of entries.*x with 40, y with 39", lambda: (X, Y[1:])),
        ("Received: generator", lambda: ((x for x in X),)),
        ("unknown or infinite size", lambda: (indexed().repeat(),)),
        ("in any order", lambda: (of_known_size(),)),
        ("y or sample_weight, too", lambda: (indexed(), Y)),
        (BATCHED, lambda: (indexed().batch(10),)),
        (r"Received: 4, .* \(10, 3\) and", lambda: (Rows(10),)),
        ("Received: 16, in batches of 8", lambda: (Batches(8, 16),)),
    ],
)
def test_data_that_cannot_be_drawn_from_are_refused(match, data):
    error = TypeError if "generator" in match else ValueError
    with pytest.raises(error, match=match):
        private().batches(*data())


@pytest.mark.parametrize(
    "data",
    [
        lambda pair: (pair([X, X[:, :2]]), Y),
        lambda pair: (pair([X]), Y),
        lambda pair: ({"a": pair([X, X])}, Y),
        lambda pair: (X, pair([Y, Y]), pair([Y, Y])),
        lambda pair: (Rows(pair=pair),),
        lambda pair: (PairsInBatches(8, pair=pair),),
    ],
    ids=["inputs", "one", "in_a_dict", "targets", "by_number", "py_dataset"],
)
def test_lists_give_the_batches_of_tuples(training, net, data):
    first = []
    for pair in (list, tuple):
        batches = training.batches(*data(pair)).dataset(
            net.aggregation_state, net.distribute_strategy
        )
        first.append(next(iter(batches)))
    keras.tree.assert_same_structure(*first)
    assert_equal(*map(keras.tree.flatten, first))


class Hooked(Batches):
    """Needs its hook before any batch, and notes what is called."""

    def __init__(self):
        super().__init__(10)
        self.calls = []

    def on_epoch_begin(self):
        self.calls.append("begin")

    def on_epoch_end(self):
        self.calls.append("end")

    def __getitem__(self, i):
        assert self.calls[-1] != "end"
        if self.calls[-1] != "batch":
            self.calls.append("batch")
        return super().__getitem__(i)


def test_the_hooks_of_a_data_set_are_called_once_an_epoch(training, net):
    data = Hooked()
    batches = training.batches(data)
    for epochs in (3, 2):
        fit(net, training, epochs=epochs, data=batches)
    assert data.calls == ["begin", "batch", "end"] * 5


def test_what_draws_batches_can_be_pickled(training):
    net = fitted(training)
    batches = training.batches(PairsInBatches(8, pair=tuple))
    copies = pickle.loads(pickle.dumps((training, training.callback, batches)))
    one, other = (
        each.batch(net.aggregation_state, 3) for each in (copies[2], batches)
    )
    assert_equal(keras.tree.flatten(one), keras.tree.flatten(other))
    fit(net, copies[0])
    assert copies[0].statement()["phases"][0]["steps"] == 8


@pytest.mark.parametrize(
    ("steps", "error", "match"),
    [
        (None, ValueError, "number of steps is not known"),
        (2.5, TypeError, "Received: 2.5 of type float"),
        (-1, ValueError, r"at least 0. Received: epsilon\(-1\)"),
        ("model", TypeError, r"Model.*spent is in statement\(model\)"),
    ],
)
def test_epsilon_of_something_else(training, net, steps, *, error, match):
    with pytest.raises(error, match=match):
        training.epsilon(net if steps == "model" else steps)
