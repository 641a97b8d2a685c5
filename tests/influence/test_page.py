"""The page of test samples with their helpful and harmful ones."""

import base64
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_pergrad.influence.page import _image_html
from tests.influence.making import influence_of
from tests.models.making import compiled, net


def _influence(x, y, layer):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model = compiled(net(layer, shape=x.shape[1:], units=2), loss=loss)
    return influence_of(model, x, y)


def test_images_are_shown_with_the_rows_of_top(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.uniform(size=(9, 5, 6, 1)), np.arange(9) % 2
    influence = _influence(x, y, keras.layers.Flatten())
    path = tmp_path / "page.html"
    influence.page(path, x[:2], y[:2], k=2, class_names=["<cat>", "dog"])
    text = path.read_text()
    assert "&lt;cat&gt;" in text
    assert "<cat>" not in text
    assert "<script" not in text
    assert "http" not in text
    assert "prefers-color-scheme:dark" in text
    best = influence.top(x[:2], y[:2], 2)
    rows = re.findall(r"row (\d+) · label [^ ]+ · score \+", text)
    shown = [str(j) for j in best.samples[best.scores > 0]]
    assert rows == shown
    assert text.count("data:image/png") >= 2 + len(shown)
    for word in ("row", "label", "prediction", "score"):
        assert f"<dt>{word}</dt>" in text
    assert "a rank of influence, not as a promised change" in text
    outputs = influence._model.predict(x[:2], verbose=0)
    names = ["&lt;cat&gt;", "dog"]
    for label, output in zip(y, outputs):
        words = f"label {names[label]} · prediction {names[output.argmax()]}"
        assert words in text


def test_scores_of_the_same_test_samples_are_kept(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.uniform(size=(9, 3)), np.arange(9) % 2
    influence = _influence(x, y, keras.layers.Dense(4))
    before = influence.scores(x[:2], y[:2])

    def refuse(make_batches):
        raise AssertionError("computed again")

    influence._estimators[0].scores = refuse
    influence.page(tmp_path / "page.html", x[:2], y[:2])
    again = influence.scores(x[:2], y[:2])
    np.testing.assert_array_equal(again, before)
    with pytest.raises(AssertionError, match="computed again"):
        influence.scores(x[:2], 1 - y[:2])
    weight = influence._model.trainable_variables[0]
    weight.assign(weight + 1)
    with pytest.raises(ValueError, match="have changed since"):
        influence.scores(x[:2], y[:2])


def test_a_picture_is_that_of_the_array():
    rng = np.random.default_rng(0)
    for shape in ((5, 7), (5, 7, 1), (5, 7, 3)):
        array = rng.integers(0, 256, shape)
        array.flat[:2] = 0, 255
        data = _image_html(array / 255 - 0.5).split("base64,")[1].split('"')[0]
        read = tf.io.decode_png(base64.b64decode(data))
        assert abs(np.reshape(read, shape) - array).max() <= 1


@pytest.mark.quick
def test_texts_and_numbers_are_rows(tmp_path):
    x, y = np.arange(24.0).reshape(8, 3), np.arange(8) % 2
    influence = _influence(x, y, keras.layers.Dense(4))
    path = tmp_path / "page.html"

    def words(row):
        return " ".join(f"w{int(k)}" for k in row)

    influence.page(path, x[:1], y[:1], k=1, show=words)
    assert "w0 w1 w2" in path.read_text()
    influence.page(path, x[:1], y[:1], k=1)
    assert ">0 1 2<" in path.read_text()
