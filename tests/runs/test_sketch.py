"""Sketches keep lengths and angles, and are the same everywhere."""

import tracemalloc

import numpy as np
import pytest

from keras_pergrad.runs.sketch import GradientSketch

SHAPES = [(3, 3, 8, 16), (16,), (1000, 30), (30,), (1,)]


def gradients(seed):
    random = np.random.default_rng(seed)
    return [random.normal(size=shape).astype("float32") for shape in SHAPES]


def joined(parts):
    return np.concatenate([np.ravel(p) for p in parts])


def cosine(a, b):
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def test_cosines_between_runs_are_kept():
    sketch = GradientSketch(1024)
    shared = gradients(0)
    errors, lengths = [], []
    for seed in range(1, 101):
        own = gradients(seed)
        share = seed / 100
        one = [share * s + (1 - share) * o for s, o in zip(shared, own)]
        a, b = sketch(one)[0], sketch(shared)[0]
        errors.append(cosine(a, b) - cosine(joined(one), joined(shared)))
        lengths.append(np.linalg.norm(a) / np.linalg.norm(joined(one)) - 1)
    # 1/√1024 = 0.031 where the gradients are orthogonal, less elsewhere.
    assert np.std(errors) < 0.031
    assert np.max(np.abs(errors)) < 4 * 0.031
    assert np.max(np.abs(lengths)) < 4 * 0.022


def test_squared_lengths_are_unbiased_over_projections():
    # Other keys are what other variables have: many draws in one sketch.
    vector = np.random.default_rng(3).normal(size=3000)
    many = GradientSketch(64)([vector] * 1000)[1]
    squared = (many**2).sum(1) / (vector @ vector)
    # Two projections in a row, 64 and 16: variance 2/64 + 2/16 at most.
    assert abs(squared.mean() - 1) < 4 * np.sqrt((2 / 64 + 2 / 16) / 1000)
    assert squared.std() < 1.2 * np.sqrt(2 / 64 + 2 / 16)


@pytest.mark.parametrize("sparse", [1, 2, 40])
def test_gradients_with_few_large_entries(sparse):
    vector = np.zeros(50_000)
    vector[np.random.default_rng(1).permutation(50_000)[:sparse]] = 3.0
    whole = GradientSketch(1024)([vector])[0]
    assert abs(np.linalg.norm(whole) / np.linalg.norm(vector) - 1) < 0.1


def test_it_is_linear():
    sketch = GradientSketch(128)
    a, b = gradients(1), gradients(2)
    mixed = sketch([2 * x - 3 * y for x, y in zip(a, b)])
    for found, of_a, of_b in zip(mixed, sketch(a), sketch(b)):
        np.testing.assert_allclose(found, 2 * of_a - 3 * of_b, atol=1e-4)


def test_variables_of_equal_content_have_sketches_of_their_own():
    vector = np.ones(500)
    parts = GradientSketch(64)([vector, vector])[1]
    assert not np.array_equal(parts[0], parts[1])


def test_it_is_the_same_everywhere():
    whole, parts = GradientSketch(16)([np.arange(40.0), np.ones((2, 3))])
    assert whole.tolist() == WHOLE
    assert parts[1].tolist() == PART


def test_it_holds_nothing_of_the_size_of_the_model():
    sketch = GradientSketch(1024)
    big = [np.ones(4_000_000, "float32")]
    tracemalloc.start()
    sketch(big)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # Less than the gradient's own 16 MB, whatever its size.
    assert peak < 8e6


@pytest.mark.parametrize("size", [15, 0, -1, 64.0, True, None])
def test_the_size_is_checked(size):
    expected = "must be at least 16" if size == 15 else "expected a positive"
    with pytest.raises(ValueError, match=f"`sketch_size` {expected}"):
        GradientSketch(size)


def test_shapes_may_hold_no_entries():
    whole, parts = GradientSketch(32)([np.zeros((0, 4)), np.ones(3)])
    assert np.linalg.norm(parts[0]) == 0
    assert np.linalg.norm(whole) == pytest.approx(np.sqrt(3))


WHOLE = [-58, -79, 12, -29, 31, 5, 4, -22, -22, -20, -22, -2, -64, 67, 56, -57]
PART = [0, -1, 0, 0, 0, -1, 0, 0, 0, -1, 0, 1, 0, 0, 0, 0]
