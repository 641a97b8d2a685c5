"""Random projections by themselves; test_factors.py has each factor's."""

import numpy as np
import pytest
import tensorflow as tf

from keras_pergrad import factors
from keras_pergrad.influence import projection_sides as side
from keras_pergrad.influence.projected_factors import project
from keras_pergrad.influence.projection import Projection, projections
from tests.influence.factor_questions import matrix

N = 4


def test_a_part_of_the_last_axis():
    for shape in ((7,), (3, 7), (2, 3, 7)):
        for size in (1000, 5):
            whole = Projection(shape, size, seed=2)
            part = whole.of_last(2, 4)
            inner = np.random.default_rng(0).normal(size=(N, *part.shape))
            zeros = [(0, 0)] * len(shape) + [(2, 1)]
            right = whole.of_gradients(np.pad(inner, zeros))
            found = part.of_gradients(inner)
            np.testing.assert_allclose(found, right, 1e-10, 1e-10)


def test_a_graph_holds_no_matrix():
    projection = Projection((400, 300), 64, seed=0)

    @tf.function(autograph=False)
    def projected(x, dz):
        return project(factors.Outer(x, dz), projection)

    spec = tf.TensorSpec([None, 400]), tf.TensorSpec([None, 300])
    graph = projected.get_concrete_function(*spec).graph
    constants = [op for op in graph.get_operations() if op.type == "Const"]
    assert max(op.outputs[0].shape.num_elements() for op in constants) < 100


@pytest.mark.parametrize("long", [side._LONG, 0])
def test_inner_products_are_kept_in_the_mean(long, monkeypatch):
    monkeypatch.setattr(side, "_LONG", long)
    rng = np.random.default_rng(0)
    pair = rng.normal(size=(2, 20, 30))
    pair[1] += pair[0]
    right = np.sum(pair[0] * pair[1])
    found = []
    for seed in range(300):
        projection = Projection((20, 30), 36, seed=(5, seed))
        one, other = projection.of_gradients(pair).numpy()
        found.append(one @ other)
    error = np.std(found) / np.sqrt(len(found))
    assert error < 0.03 * right
    assert abs(np.mean(found) - right) < 4 * error


def test_it_is_the_same_on_every_machine():
    """Pinned: stores of projections are read by other processes."""
    projection = Projection((6, 5), 12, seed=(3, 1))
    assert projection.size == 12
    signs = projection.inputs.matrix(tf.float32).numpy()
    root = np.sqrt(projection.inputs.size)
    np.testing.assert_allclose(np.abs(signs), 1 / root, rtol=1e-6)
    signs = signs > 0
    found = ["".join("-+"[int(sign)] for sign in row) for row in signs]
    assert found == ["-+--", "++-+", "+++-", "++++", "-+++", "++-+"]
    again = Projection([6, 5], 12, seed=[3, 1])
    np.testing.assert_array_equal(matrix(again), matrix(projection))
    places, signs = Projection((3000,), 7, (3, 1)).inputs._random_buckets()
    assert places[:8].tolist() == [5, 2, 5, 4, 0, 4, 4, 3]
    assert signs[:8].tolist() == [-1, -1, 1, 1, -1, -1, -1, -1]
    other = Projection((6, 5), 12, seed=(3, 2))
    assert not np.array_equal(matrix(other), matrix(projection))


def test_sizes_are_shared_out():
    shapes = [(100, 50), (50,), (50, 20), (20,), ()]
    found = projections(shapes, 300, seed=4)
    assert [p.shape for p in found] == shapes
    assert [p.seed for p in found] == [(4, k) for k in range(5)]
    assert [p.size for p in found] == [110, 50, 110, 20, 1]
    assert sum(p.size for p in projections(shapes, 5, 0)) == 5
    whole = projections(shapes, 10**5, 0)
    assert [p.size for p in whole] == [5000, 50, 1000, 20, 1]


@pytest.mark.parametrize(
    ("shape", "size", "sides"),
    [
        ((9, 32, 32), 440, (16, 27)),  # a multiple of sixteen windows' columns
        ((9, 64, 64), 4096, (64, 64)),
        ((288, 40), 961, (24, 40)),  # 16 · 40 would waste a third
        ((288, 32), 1023, (31, 32)),
        ((100, 50), 80, (10, 8)),
    ],
)
def test_how_a_share_is_divided_between_the_sides(shape, size, sides):
    projection = Projection(shape, size, seed=0)
    assert (projection.inputs.size, projection.outputs.size) == sides


def test_what_cannot_be_projected_is_refused():
    with pytest.raises(ValueError, match="at least 5, a number for each"):
        projections([(2, 2)] * 5, 4, seed=0)
    with pytest.raises(ValueError, match="`size` must be at least 1"):
        Projection((2, 2), 0, seed=0)
    with pytest.raises(ValueError, match="all of it known"):
        Projection((None, 2), 3, seed=0)
