"""The store of projected gradients: shards, kills, refusals, queries."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.influence import gradient_store, projected_rows
from keras_pergrad.influence.gradient_store import GradientStore
from keras_pergrad.influence.projected_rows import RowsOnDisk
from tests.influence import making
from tests.models.making import compiled, integers, net, normal, trained

Influence = kpg.influence.Influence
ROOT = pathlib.Path(__file__).parents[2]
#: Builds shard i of n of a store; each process makes the same model and data.
BUILD = """
import sys
from tests.influence.test_store import influence_of, made
path, number, of = sys.argv[1:]
influence_of(*made()).save(path, (int(number), int(of)))
"""


def made(activation="tanh", loss=None):
    """A model and data, the same each time; the last batch of 8 has 4."""
    keras.utils.set_random_seed(0)
    hidden = keras.layers.Dense(8, activation=activation)
    loss = loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model = compiled(net(hidden, shape=(6,)), loss=loss)
    return model, normal(60, 6), integers(3, 60)


def influence_of(model, x, y, **how):
    how = {"batch_size": 8, "projection_size": 24, **how}
    return making.influence_of(model, x, y, curvature="projected", **how)


def _process(code, *arguments, **how):
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        **{"stdout": subprocess.DEVNULL, **how},
    )


def _files(path):
    return {
        file.name: file.read_bytes()
        for file in (pathlib.Path(path) / "0").iterdir()
    }


def test_shards_and_resumed_parts_are_the_whole_to_the_bit(tmp_path):
    model, x, y = made()
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert influence_of(model, x, y).save(whole)
    complete = [
        influence_of(model, x, y).save(parts, (k, 4)) for k in (2, 0, 3, 0, 1)
    ]
    assert complete == [False] * 4 + [True]
    assert _files(whole) == _files(parts)


@pytest.mark.slow
def test_four_processes_build_what_one_builds_to_the_bit(tmp_path):
    one = _process(BUILD, tmp_path / "one", 0, 1)
    assert one.wait() == 0
    four = [_process(BUILD, tmp_path / "four", k, 4) for k in range(4)]
    assert [process.wait() for process in four] == [0] * 4
    assert _files(tmp_path / "one") == _files(tmp_path / "four")


@pytest.mark.quick
def test_a_loaded_store_answers_as_the_data_do(tmp_path):
    model, x, y = made()
    influence = influence_of(model, x, y)
    right, own = influence.scores(x[:5], y[:5]), influence.self_influence()
    assert influence.save(tmp_path)
    loaded = Influence.load(tmp_path, model)
    for each in (loaded, influence):
        making.assert_near(each.scores(x[:5], y[:5]), right, 2e-3)
        np.testing.assert_allclose(each.self_influence(), own, 1e-2)
    rows = np.load(tmp_path / "0" / "gradients.npy", mmap_mode="r")
    assert rows.dtype == np.float16
    assert rows.shape[0] == 60


def test_an_interrupted_build_is_resumed_after_its_last_chunk(
    tmp_path, monkeypatch
):
    model, x, y = made()
    assert influence_of(model, x, y).save(tmp_path / "whole")
    written = []

    def write(store, chunk, rows, *, original=GradientStore.write):
        # Half of the rows are there when it ends.
        if len(written) == 3:
            written.append(None)
            original(store, chunk, rows + 1)
            with open(store.path / "chunks.bin", "r+b") as file:
                file.seek(chunk)
                file.write(b"\0")
            raise KeyboardInterrupt
        written.append(chunk)
        original(store, chunk, rows)

    monkeypatch.setattr(GradientStore, "write", write)
    path = tmp_path / "parts"
    with pytest.raises(KeyboardInterrupt):
        influence_of(model, x, y).save(path)
    with pytest.raises(ValueError, match="5 of 8 chunks are missing"):
        Influence.load(path, model)
    assert influence_of(model, x, y).save(path)
    assert written == [0, 1, 2, None, 3, 4, 5, 6, 7]
    assert _files(path) == _files(tmp_path / "whole")


#: Writes a chunk of a store for each line that it is given.
KILLED = """
import sys
import numpy as np
from keras_pergrad.influence.gradient_store import GradientStore
about = {"samples": 4000, "size": 16, "rows": 10}
store = GradientStore(sys.argv[1], about)
for chunk in store.missing():
    sys.stdin.readline()
    print(chunk, flush=True)
    store.write(chunk, np.full((10, 16), chunk + 1.0))
"""


@pytest.mark.exhaustive
def test_twenty_kills_lose_at_most_a_chunk_each(tmp_path):
    begun = []
    for kill in range(21):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with _process(KILLED, tmp_path, text=True, **pipes) as process:
            # The last one is given as many as there may be.
            chunks = kill + 1 if kill < 20 else 400
            process.stdin.write("\n" * chunks)
            process.stdin.flush()
            if kill < 20:
                begun += [int(process.stdout.readline()) for _ in range(chunks)]
                time.sleep(0.0002 * kill)
                process.send_signal(signal.SIGKILL)
            begun += map(int, process.stdout.read().split())
    # Each kill has one chunk built again, and no other is.
    assert sorted(set(begun)) == list(range(400))
    assert len(begun) <= 400 + 20
    for first, rows, scales in GradientStore(tmp_path).stored_blocks():
        expected = 1.0 + (first + np.arange(len(rows))) // 10
        np.testing.assert_array_equal(rows, 1)
        np.testing.assert_array_equal(scales, expected)


def test_rows_are_kept_to_half_precision_of_their_largest(tmp_path):
    rows = np.random.default_rng(0).normal(size=(7, 5))
    rows *= 10.0 ** np.arange(-20, 22, 6)[:, None]
    rows[3] = 0
    store = RowsOnDisk(tmp_path, {"samples": 7, "size": 5, "rows": 4})
    store.write(1, rows[4:])
    store.write(0, rows[:4])
    (found,) = store.blocks()
    limit = 1e-3 * np.abs(rows).max(1, keepdims=True)
    assert np.all(np.abs(found - rows) <= limit)
    others = np.random.default_rng(1).normal(size=(3, 5))
    np.testing.assert_allclose(store.times(others), others @ found.T, 1e-4)


def test_a_query_reads_block_by_block_in_pieces(tmp_path, monkeypatch):
    # 71 rows of 5 numbers: blocks of 32, 32 and 7, in pieces of 3.
    monkeypatch.setattr(gradient_store, "_READ_BYTES", 2 * 32 * 5)
    monkeypatch.setattr(projected_rows, "_PIECE_SIZE", 3 * 5 + 2)
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(71, 5)).astype("float32")
    store = RowsOnDisk(tmp_path, {"samples": 71, "size": 5, "rows": 71})
    assert len(list(store.blocks())) == 3
    store.write(0, rows)
    others = rng.normal(size=(2, 5))
    found = store.times(others)
    limit = 1e-3 * np.abs(rows).max() * np.abs(others).sum()
    np.testing.assert_allclose(found, others @ rows.T, atol=limit, rtol=0)
    read = np.concatenate(list(store.blocks()))
    np.testing.assert_allclose(found, others @ read.T, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found, store.times(others))


def test_a_store_whose_files_are_cut_off_is_refused(tmp_path):
    model, x, y = made()
    assert influence_of(model, x, y).save(tmp_path)
    os.truncate(tmp_path / "0" / "gradients.npy", 1000)
    loaded = Influence.load(tmp_path, model, verbose=0)
    with pytest.raises(ValueError, match=r"gradients\.npy.* 60 samples"):
        loaded.scores(x[:2], y[:2])


def test_what_does_not_fit_a_store_is_refused(tmp_path):
    model, x, y = made()
    assert influence_of(model, x, y).save(tmp_path)
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
    uneven = batches.take(1).concatenate(batches.unbatch().batch(6))
    shards = "0 <= i < of"
    for how, where, said in (
        ({"seed": 1}, (), "seed is 0"),
        ({"projection_size": 20}, (), "projection_size is 24"),
        ({"batch_size": 4}, (), "rows is 8"),
        ({}, ((2, 2),), shards),
        ({}, ((-1, 2),), shards),
        ({}, (3,), shards),
        ({}, ((0,),), shards),
    ):
        with pytest.raises(ValueError, match=said):
            influence_of(model, x, y, **how).save(tmp_path, *where)
    with pytest.raises(ValueError, match="samples is 60"):
        influence_of(model, x[:-8], y[:-8]).save(tmp_path)
    with pytest.raises(ValueError, match="has no data"):
        Influence.load(tmp_path, model).save(tmp_path / "other")
    with pytest.raises(ValueError, match="a path without one"):
        Influence.load(tmp_path / "none", model)
    odd = influence_of(model, uneven, None, batch_size=None)
    with pytest.raises(ValueError, match="batches of one size"):
        odd.save(tmp_path / "odd")
    trained(model, x, y)
    with pytest.raises(ValueError, match="weights is"):
        Influence.load(tmp_path, model)


def test_a_store_of_other_data_or_another_model_is_refused(tmp_path):
    """Labels that were corrected, layers and losses: weights do not tell."""
    model, x, y = made()
    right, corrected = influence_of(model, x, y), influence_of(model, x, 2 - y)
    assert not right.save(tmp_path, shard=(0, 2))
    with pytest.raises(ValueError, match="data is"):
        corrected.save(tmp_path, shard=(1, 2))
    assert right.save(tmp_path, shard=(1, 2))
    with pytest.raises(ValueError, match="data is"):
        corrected.save(tmp_path)
    # Keras gives the layers other names; they do not matter.
    assert Influence.load(tmp_path, made()[0]).scores(x, y).any()
    for changed in ({"activation": "relu"}, {"loss": "mse"}):
        with pytest.raises(ValueError, match="model is"):
            Influence.load(tmp_path, made(**changed)[0])
