"""Examples are taken by position, and what cannot be drawn from says why."""

import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.privacy.tiny import N, X, Y, fit, model, private

SHUFFLED = np.random.default_rng(1).permutation(N)


def frames():
    """X and Y as a DataFrame and a Series whose labels are in disorder."""
    pandas = pytest.importorskip("pandas")
    x = pandas.DataFrame(X, index=SHUFFLED, columns=list("abc"))
    return x, pandas.Series(Y[:, 0], index=SHUFFLED[::-1])


def test_data_frames_are_taken_by_position():
    x, y = frames()
    training = private()
    ledger = model(training).aggregation_state
    expected = training.batches(X, Y, Y[:, 0]).batch(ledger, 1)
    for data in (
        training.batches(x, y, y),
        training.batches(x, Y, y),
        training.batches(X, y.to_frame(), y),
    ):
        found = data.batch(ledger, 1)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(np.ravel(a), np.ravel(b))
    (by_name,) = training.batches({"a": x["a"], "all": x}).batch(ledger, 1)
    np.testing.assert_array_equal(by_name["a"], expected[0][:, 0])
    np.testing.assert_array_equal(by_name["all"], expected[0])


def test_data_frames_train_as_arrays_do():
    x, y = frames()
    weights = []
    for data in ((X, Y), (x, y.to_frame())):
        training = private()
        net = model(training)
        fit(net, training, data=training.batches(*data))
        weights.append(net.get_weights())
    for a, b in zip(*weights, strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.warns(UserWarning, match="are the protected examples"):
        fit(
            net,
            training,
            data=training.batches(x, Y),
            validation_data=(x, Y + 0),
        )


def test_users_in_a_series():
    pandas = pytest.importorskip("pandas")
    users = np.arange(N) // 4
    arguments = {"samples_per_user": 2, "batch_size": 5}
    rows = [
        private(user_ids=ids, **arguments).batches(X, Y).rows
        for ids in (users, pandas.Series(users, index=SHUFFLED))
    ]
    np.testing.assert_array_equal(*rows)


def test_frames_of_several_kinds_are_refused():
    pandas = pytest.importorskip("pandas")
    x = pandas.DataFrame({"a": np.arange(N), "b": ["u", "v"] * (N // 2)})
    with pytest.raises(ValueError, match=r"of dtypes \['int64', '.*'\]. Conv"):
        private().batches(x, Y)
    text = private().batches({"a": x["a"], "b": x["b"]}, Y)
    assert {s.dtype for s in text.spec[0].values()} == {tf.int64, tf.string}


def test_batched_data_sets_say_so():
    training = private()
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(10)
    with pytest.raises(
        ValueError,
        match=r"samples=40. Received: 4, the first of which is of shape "
        r"\(10, 3\) and \(10, 1\). If these are batches: .*before .batch\(\)",
    ):
        training.batches(data)

    class Loader:
        def __len__(self):
            return 4

        def __getitem__(self, number):
            rows = slice(10 * number, 10 * number + 10)
            return X[rows], Y[rows]

    with pytest.raises(ValueError, match=r"Received: 4, .* \(10, 3\) and"):
        training.batches(Loader())


def test_batches_of_a_data_set_of_another_size_say_so():
    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 2

        def __getitem__(self, number):
            return X[:8], Y[:8]

    with pytest.raises(ValueError, match="Received: 16, in batches of 8"):
        private().batches(Batches())


@pytest.mark.parametrize("name", ["y", "sample_weight"])
def test_lists_of_targets_are_refused(name):
    lists = {name: [0.0] * N}
    with pytest.raises(
        TypeError, match=rf"Expected `{name}` as an array.*list"
    ):
        private().batches(X, **lists)
    several = private().batches({"a": X}, [Y, Y])
    assert len(several.spec[1]) == 2


class Pairs:
    """Examples by number, whose inputs are of the kind of `pair`."""

    def __init__(self, pair):
        self.pair = pair

    def __len__(self):
        return N

    def __getitem__(self, i):
        return self.pair([X[i], X[i, :2]]), Y[i]


class PairsInBatches(keras.utils.PyDataset):
    def __init__(self, pair):
        super().__init__()
        self.pair = pair

    def __len__(self):
        return N // 8

    def __getitem__(self, i):
        rows = slice(8 * i, 8 * i + 8)
        return self.pair([self.pair([X[rows], X[rows, :2]]), Y[rows]])


@pytest.mark.parametrize(
    "data",
    [
        lambda pair: (pair([X, X[:, :2]]), Y),
        lambda pair: (pair([X]), Y),
        lambda pair: ({"a": pair([X, X])}, Y),
        lambda pair: (X, pair([Y, Y]), pair([Y, Y])),
        lambda pair: (Pairs(pair),),
        lambda pair: (PairsInBatches(pair),),
    ],
    ids=["inputs", "one", "in_a_dict", "targets", "by_number", "py_dataset"],
)
def test_lists_give_the_batches_of_tuples(data):
    training = private()
    net = model(training)
    first = [
        next(
            iter(
                training.batches(*data(pair)).dataset(
                    net.aggregation_state, net.distribute_strategy
                )
            )
        )
        for pair in (list, tuple)
    ]
    keras.tree.assert_same_structure(*first)
    for a, b in zip(*map(keras.tree.flatten, first), strict=True):
        np.testing.assert_array_equal(a, b)


class Hooked(keras.utils.PyDataset):
    """Needs its hook before any batch, and notes what is called."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __len__(self):
        return 4

    def on_epoch_begin(self):
        self.x = X
        self.calls.append("begin")

    def on_epoch_end(self):
        self.calls.append("end")

    def __getitem__(self, i):
        if self.calls[-1] != "batch":
            self.calls.append("batch")
        rows = slice(10 * i, 10 * i + 10)
        return self.x[rows], Y[rows]


def test_the_hooks_of_a_data_set_are_called_once_an_epoch():
    training = private()
    net, data = model(training), Hooked()
    batches = training.batches(data)
    for epochs in (3, 2):
        fit(net, training, epochs=epochs, data=batches)
    assert data.calls == ["begin", "batch", "end"] * 5


def test_what_draws_batches_can_be_pickled():
    training = private()
    net = model(training)
    fit(net, training)
    batches = training.batches(PairsInBatches(tuple))
    copies = pickle.loads(pickle.dumps((training, training.callback, batches)))
    ledger = net.aggregation_state
    for a, b in zip(
        keras.tree.flatten(copies[2].batch(ledger, 3)),
        keras.tree.flatten(batches.batch(ledger, 3)),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)
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
def test_epsilon_of_something_else(steps, error, match):
    training = private()
    steps = model(training) if steps == "model" else steps
    with pytest.raises(error, match=match):
        training.epsilon(steps)
