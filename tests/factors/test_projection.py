"""Random projections of every factor, against those of its gradients."""

import numpy as np
import pytest
import tensorflow as tf

from keras_pergrad import factors
from keras_pergrad.factors import side
from tests.factors.test_every_factor import FACTORS, HELD, KEEP, N, drawn

#: Numbers of projections: all entries, of a side or none left as they are.
SIZES = (10000, 40, 11, 6, 1)
LIMITS = {"rtol": 1e-10, "atol": 1e-10}


def _patches(groups=1, dilation=1, strides=1):
    windows = factors.Windows.of((8,), (3,), (strides,), (dilation,), "same")
    return factors.Patches(
        drawn(8, 4),
        drawn(windows.count, 4 if groups == 4 else 6),
        windows,
        (3, 4 // groups, 6) if groups < 4 else (3, 4, 1),
        groups,
    )


def _several_axes():
    table = FACTORS["Rows"]()
    dz = drawn(6, 6)
    return factors.Rows(table.ids, dz, (5, 6), whole=(5, 3, 2))


MORE = {
    "many positions": lambda: factors.Outer(drawn(300, 4), drawn(300, 3)),
    "heads behind": lambda: factors.Outer(drawn(2, 5), drawn(2, 6), [5, 3, 2]),
    "heads before": lambda: factors.Outer(drawn(2, 6), drawn(2, 5), [3, 2, 5]),
    "heads around": lambda: factors.Outer(
        drawn(2, 5), drawn(2, 6), [3, 5, 2], [1, 0, 2], [5, 3, 2]
    ),
    "heads turned": lambda: factors.Outer(
        drawn(2, 6), drawn(2, 5), [2, 5, 3], [1, 2, 0], [3, 2, 5]
    ),
    "an axis on both sides": lambda: factors.Outer(
        drawn(2, 4), drawn(2, 3), [2, 6]
    ),
    "a vector": lambda: factors.Outer(drawn(2, 6), drawn(2, 1), [6]),
    "a number": lambda: factors.Sum(drawn(7), []),
    "a row": lambda: factors.Outer(drawn(2, 1), drawn(2, 9), [9]),
    "a table of several axes": _several_axes,
    "columns of vectors": lambda: factors.Columns(
        [factors.Sum(drawn(3)), factors.Sum(drawn(4))]
    ),
    "dilated": lambda: _patches(dilation=2),
    "strides": lambda: _patches(strides=2),
    "groups": lambda: _patches(groups=2),
    "depthwise": lambda: _patches(groups=4),
    "blocks of many positions": lambda: factors.Blocks(
        drawn(2, 90, 3), drawn(2, 90, 4)
    ),
    "blocks turned": lambda: factors.Blocks(
        drawn(2, 5, 3), drawn(2, 5, 4), [3, 2, 4], [1, 0, 2], [2, 3, 4]
    ),
    "joined matrices": lambda: factors.join(
        [FACTORS["Outer of positions"](), FACTORS["Outer"]()]
    ),
    "tied and turned": lambda: factors.join(
        [
            FACTORS["Rows"](),
            factors.Outer(drawn(2, 3), drawn(2, 5), [5, 3], [1, 0], [3, 5]),
        ]
    ),
}
ALL = {**FACTORS, **MORE}


def _matrix(projection):
    """Return the map, (entries, size), by the gradients of each entry."""
    entries = int(np.prod(projection.shape, dtype=int))
    each = np.eye(entries).reshape(-1, *projection.shape)
    return projection.of_gradients(each).numpy()


def _right(name, projection):
    gradients = ALL[name]().materialize().numpy()
    return gradients.reshape(N, -1) @ _matrix(projection)


def _shape(name):
    return ALL[name]().materialize().shape[1:]


@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize("name", ALL)
def test_projections_are_those_of_the_gradients(name, held):
    for size in SIZES:
        projection = factors.Projection(_shape(name), size, seed=1)
        assert 1 <= projection.size <= size
        found = HELD[held](ALL[name]).project(projection)
        assert found.shape == (N, projection.size)
        np.testing.assert_allclose(found, _right(name, projection), **LIMITS)


@pytest.mark.parametrize("large", [side._LARGE, 0])
@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize("name", ALL)
def test_long_sides(name, held, large, monkeypatch):
    monkeypatch.setattr(side, "_LONG", 0)
    monkeypatch.setattr(side, "_LARGE", large)
    projection = factors.Projection(_shape(name), 6, seed=1)
    found = HELD[held](ALL[name]).project(projection)
    np.testing.assert_allclose(found, _right(name, projection), **LIMITS)


@pytest.mark.parametrize("xla", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_projections_are_the_same_in_a_graph(name, xla):
    projection = factors.Projection(_shape(name), 6, seed=1)
    right = _right(name, projection)

    def project():
        return ALL[name]().project(projection)

    found = tf.function(project, jit_compile=xla, autograph=False)()
    np.testing.assert_allclose(found, right, **LIMITS)


@pytest.mark.parametrize("norms", [True, False])
@pytest.mark.parametrize("name", ALL)
def test_a_blank_sample_has_no_projection(name, norms):
    factor = ALL[name]()
    for part in factor.holders():
        for tensor in part.rows:
            value = getattr(part, tensor)
            if value is not None:
                broken = np.array(value)
                broken[1] = np.nan
                setattr(part, tensor, tf.constant(broken))
    if norms:
        factor.squared_norms()
    factor.select(tf.constant(KEEP))
    projection = factors.Projection(_shape(name), 6, seed=1)
    right = _right(name, projection) * KEEP[:, None]
    np.testing.assert_allclose(factor.project(projection), right, **LIMITS)


def test_a_part_of_the_last_axis():
    for shape in ((7,), (3, 7), (2, 3, 7)):
        for size in (1000, 5):
            whole = factors.Projection(shape, size, seed=2)
            part = whole.of_last(2, 4)
            inner = np.random.default_rng(0).normal(size=(N, *part.shape))
            zeros = [(0, 0)] * len(shape) + [(2, 1)]
            right = whole.of_gradients(np.pad(inner, zeros))
            np.testing.assert_allclose(
                part.of_gradients(inner), right, **LIMITS
            )


def test_a_graph_holds_no_matrix():
    projection = factors.Projection((400, 300), 64, seed=0)

    @tf.function(autograph=False)
    def project(x, dz):
        return factors.Outer(x, dz).project(projection)

    spec = tf.TensorSpec([None, 400]), tf.TensorSpec([None, 300])
    graph = project.get_concrete_function(*spec).graph
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
        projection = factors.Projection((20, 30), 36, seed=(5, seed))
        one, other = projection.of_gradients(pair).numpy()
        found.append(one @ other)
    error = np.std(found) / np.sqrt(len(found))
    assert error < 0.03 * right
    assert abs(np.mean(found) - right) < 4 * error


def test_it_is_the_same_on_every_machine():
    """Pinned: stores of projections are read by other processes."""
    projection = factors.Projection((6, 5), 12, seed=(3, 1))
    assert projection.size == 12
    signs = projection.inputs.matrix(tf.float32).numpy() > 0
    found = ["".join("-+"[int(sign)] for sign in row) for row in signs]
    assert found == ["-+--", "++-+", "+++-", "++++", "-+++", "++-+"]
    again = factors.Projection([6, 5], 12, seed=[3, 1])
    np.testing.assert_array_equal(_matrix(again), _matrix(projection))
    places, signs = factors.Projection(
        (3000,), 7, (3, 1)
    ).inputs._random_places()
    assert places[:8].tolist() == [5, 2, 5, 4, 0, 4, 4, 3]
    assert signs[:8].tolist() == [-1, -1, 1, 1, -1, -1, -1, -1]
    other = factors.Projection((6, 5), 12, seed=(3, 2))
    assert not np.array_equal(_matrix(other), _matrix(projection))


def test_sizes_are_shared_out():
    shapes = [(100, 50), (50,), (50, 20), (20,), ()]
    found = factors.projections(shapes, 300, seed=4)
    assert [p.shape for p in found] == shapes
    assert [p.seed for p in found] == [(4, k) for k in range(5)]
    assert [p.size for p in found] == [110, 50, 110, 20, 1]
    assert sum(p.size for p in factors.projections(shapes, 5, 0)) == 5
    whole = factors.projections(shapes, 10**5, 0)
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
    projection = factors.Projection(shape, size, seed=0)
    assert (projection.inputs.size, projection.outputs.size) == sides


def test_what_cannot_be_projected_is_refused():
    with pytest.raises(ValueError, match="at least 5, a number for each"):
        factors.projections([(2, 2)] * 5, 4, seed=0)
    with pytest.raises(ValueError, match="`size` must be at least 1"):
        factors.Projection((2, 2), 0, seed=0)
    with pytest.raises(ValueError, match="all of it known"):
        factors.Projection((None, 2), 3, seed=0)
