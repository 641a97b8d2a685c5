"""Event files, read back by TensorBoard's own reader."""

import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests.trackers.readings import PATHS, reading, written

accumulator = pytest.importorskip(
    "tensorboard.backend.event_processing.event_accumulator"
)


def events(log_dir):
    """Return plugin and name → steps and values, as TensorBoard loads them."""
    read = accumulator.EventAccumulator(
        str(log_dir), size_guidance={accumulator.TENSORS: 0}
    ).Reload()
    return {
        (read.SummaryMetadata(name).plugin_data.plugin_name, name): [
            (event.step, tf.make_ndarray(event.tensor_proto))
            for event in read.Tensors(name)
        ]
        for name in read.Tags()["tensors"]
    }


def test_scalars_and_histograms_are_read_back(tmp_path):
    board = written(kpg.trackers.TensorBoard(tmp_path), reading(3))
    assert events(tmp_path)["scalars", "gradient_norm"] == [(3, 5.0)]
    board.write(reading(10))
    board.end()
    board.end()
    seen = events(tmp_path)
    assert seen.keys() == {
        ("scalars", "gradient_norm"),
        ("scalars", f"norm_test/{PATHS[0]}"),
        ("histograms", f"gradient/{PATHS[0]}"),
        ("histograms", "sample_norms"),
    }
    assert seen["scalars", "gradient_norm"] == [(3, 5.0), (10, 12.0)]
    (step, bins), _ = seen["histograms", f"gradient/{PATHS[0]}"]
    assert step == 3
    np.testing.assert_array_equal(bins, [[-1, 0, 1], [0, 0.25, 3]])


def test_they_are_what_the_functions_of_tensorflow_write(tmp_path):
    """TensorBoard chooses the dashboard by the metadata."""
    written(kpg.trackers.TensorBoard(tmp_path / "ours"), reading(3)).end()
    with tf.summary.create_file_writer(str(tmp_path / "theirs")).as_default():
        tf.summary.scalar("gradient_norm", 5.0, step=3)
        tf.summary.histogram("sample_norms", [1.0, 2.0], step=3)
    ours, theirs = (
        accumulator.EventAccumulator(str(tmp_path / name)).Reload()
        for name in ("ours", "theirs")
    )
    for name in theirs.Tags()["tensors"]:
        mine, other = ours.SummaryMetadata(name), theirs.SummaryMetadata(name)
        assert mine.data_class == other.data_class
        assert mine.plugin_data == other.plugin_data
        (mine,), (other,) = ours.Tensors(name), theirs.Tensors(name)
        assert mine.tensor_proto.dtype == other.tensor_proto.dtype
