"""What every factor answers, against its gradients written out."""

import inspect
import itertools

import numpy as np
import pytest
import tensorflow as tf

from keras_pergrad import factors
from keras_pergrad.factors import outer
from keras_pergrad.factors import projection as side
from tests.factors.cases import (
    ALL,
    FACTORS,
    HELD,
    KEEP,
    SIDES,
    WEIGHTS,
    N,
    blanked,
    dense,
    drawn,
    gradients,
    set_second,
    without_first,
)

LIMITS = {"rtol": 1e-10, "atol": 1e-10}
#: Numbers of projections: all entries, a few of both sides, one.
SIZES = (10000, 11, 1)


def _assert_close(found, right):
    np.testing.assert_allclose(found, right, **LIMITS)


def test_there_is_a_case_of_every_class():
    public = map(factors.__dict__.get, factors.__all__)
    classes = {
        one
        for one in public
        if inspect.isclass(one)
        and issubclass(one, factors.SampleGradients)
        and not inspect.isabstract(one)
    }
    assert classes <= {type(make()) for make in FACTORS.values()}


@pytest.mark.parametrize("name", ALL)
def test_norms_and_sums(name):
    each = gradients(name)
    assert each.shape[0] == N
    norms = np.square(each).reshape(N, -1).sum(1)
    total = np.square(each.sum(0)).sum()
    scales = ((None, np.ones(N)), (WEIGHTS, WEIGHTS))
    sums = [(w, np.tensordot(scale, each, 1)) for w, scale in scales]
    for hold in HELD.values():
        factor = hold(ALL[name])
        for weights, right in sums:
            found = tf.convert_to_tensor(factor.weighted_sum(weights))
            np.testing.assert_allclose(found, right, rtol=1e-10, atol=1e-12)
        found = factor.squared_norm_of_sum()
        np.testing.assert_allclose(found, total, rtol=1e-10)
        found = hold(ALL[name]).squared_norms()
        np.testing.assert_allclose(found, norms, rtol=1e-10)


@pytest.mark.parametrize("name", ALL)
def test_products_and_squares(name):
    each = gradients(name)
    axes = tuple(range(1, each.ndim))
    direction = np.random.default_rng(7).normal(size=each.shape[1:])
    directions = [direction, tf.constant(direction, tf.float64)]
    if direction.ndim:
        rows = np.array([1, 0, 1]) % len(direction)
        directions.append(
            tf.IndexedSlices(tf.constant(direction[rows]), rows, each.shape[1:])
        )
    for hold in HELD.values():
        factor = hold(ALL[name])
        for one in directions:
            _assert_close(factor.dot(one), (each * dense(one)).sum(axes))
        squares = factor.sum_of_squares()
        _assert_close(dense(squares), np.square(each).sum(0))
        total = factor.weighted_sum(None)
        assert isinstance(squares, type(total))
        _assert_close(factor.dot(total), (each * each.sum(0)).sum(axes))


@pytest.mark.parametrize("name", FACTORS)
def test_pairs(name):
    make = ALL[name]
    each = gradients(name).reshape(N, -1)
    others = without_first(make(), 1).materialize()
    right = each @ others.numpy().reshape(N - 1, -1).T
    full = factors.Full(tf.constant(gradients(name)))
    for hold in HELD.values():
        _assert_close(hold(make).gram(), each @ each.T)
        new, held = (without_first(f(make), 1) for f in (HELD["nothing"], hold))
        for other in (new, held, factors.Full(others)):
            _assert_close(hold(make).gram(other), right)
        for other in (new, held):
            _assert_close(full.gram(other), right)


def matrix(projection):
    """Return the map, (entries, size), by the gradients of each entry."""
    entries = int(np.prod(projection.shape, dtype=int))
    each = np.eye(entries).reshape(-1, *projection.shape)
    return projection.of_gradients(each).numpy()


def _projection(name, size=6):
    """Return a projection, and what it makes of the gradients."""
    each = gradients(name)
    projection = factors.Projection(each.shape[1:], size, seed=1)
    return projection, each.reshape(N, -1) @ matrix(projection)


@pytest.mark.parametrize("name", ALL)
def test_projections(name, monkeypatch):
    for size in SIZES:
        _check_projection(name, size)
    for large in (side._LARGE, 0):
        with monkeypatch.context() as patch:
            patch.setattr(side, "_LONG", 0)
            patch.setattr(side, "_LARGE", large)
            _check_projection(name, 6)


def _check_projection(name, size):
    projection, right = _projection(name, size)
    assert 1 <= projection.size <= size
    for hold in HELD.values():
        found = hold(ALL[name]).project(projection)
        assert found.shape == (N, projection.size)
        _assert_close(found, right)


def matrices_of(each, axes):
    """Return gradients as (n, axes on the left, others)."""
    others = [k for k in range(each.ndim - 1) if k not in axes]
    turned = each.transpose([0, *(k + 1 for k in (*axes, *others))])
    left = int(np.prod([each.shape[k + 1] for k in axes], dtype=int))
    return turned.reshape(len(each), left, -1)


@pytest.mark.parametrize("name", ALL)
def test_rotations(name):
    matrices = matrices_of(gradients(name), SIDES.get(name, ()))
    rng = np.random.default_rng(3)
    left = rng.normal(size=(matrices.shape[1], 3))
    right = rng.normal(size=(matrices.shape[2], 2))
    for u, v in itertools.product((None, left), (None, right)):
        expected = matrices if u is None else u.T @ matrices
        expected = expected if v is None else expected @ v
        squares = np.square(expected).sum(0)
        for hold in HELD.values():
            found = hold(ALL[name]).rotated(u, v)
            _assert_close(dense(found.sum_of_squares()), squares)
            found = hold(ALL[name]).rotated(u, v)
            _assert_close(found.materialize(), expected)


@pytest.mark.parametrize("name", FACTORS)
def test_squares_by_chunks(name, monkeypatch):
    right = np.square(gradients(name)).sum(0)
    # Of a sample, of some with a rest, of nearly all.
    for numbers in (1, 20, 60):
        found = _squares_by_chunks(FACTORS[name], numbers, monkeypatch)
        _assert_close(found, right)


def _squares_by_chunks(make, numbers, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(outer, "HELD", numbers)
        return tf.convert_to_tensor(make().sum_of_squares())


@pytest.mark.parametrize("name", ALL)
def test_methods(name):
    factor = ALL[name]()
    assert isinstance(factor.chosen_method(), str)
    assert isinstance(factor.sum_method(), str)
    held = factor.norm_bytes(N)
    assert held is None or held > 0


@pytest.mark.parametrize("name", ALL)
def test_answers_are_the_same_in_a_graph(name, monkeypatch):
    each = gradients(name)
    squares = np.square(each).sum(0)
    direction = np.tensordot(WEIGHTS, each, 1)
    flat = each.reshape(N, -1)
    projection, projected = _projection(name)
    eager = ALL[name]().kronecker()
    v = np.random.default_rng(3).normal(size=(eager.outputs.shape[0], 2))
    rotated = np.square(matrices_of(each, SIDES.get(name, ())) @ v).sum(0)

    def two(make):
        factor = make()
        sums = factor.sum_of_squares()
        return factor.dot(direction), tf.convert_to_tensor(sums)

    def others(make):
        with monkeypatch.context() as patch:
            patch.setattr(outer, "HELD", 20)
            turned = make().rotated(outputs=v).sum_of_squares()
            found = [*make().kronecker()[:3], tf.convert_to_tensor(turned)]
        return [*found, make().project(projection)]

    def of_a_class(make):
        pairs = make().gram(), make().gram(without_first(make(), 2))
        return [*two(make), *others(make), *pairs]

    def with_chunks(make):
        return [*of_a_class(make), _squares_by_chunks(make, 20, monkeypatch)]

    rights = {
        two: [flat @ direction.ravel(), squares],
        others: [*eager[:3], rotated, projected],
    }
    pairs = [flat @ flat.T, flat @ flat[2:].T]
    rights[of_a_class] = [*rights[two], *rights[others], *pairs]
    rights[with_chunks] = [*rights[of_a_class], squares]
    # A graph may not know the batch's size, and XLA traces other methods.
    if name in FACTORS:
        asked = [
            (of_a_class, False, False),
            (two, False, True),
            (with_chunks, True, True),
        ]
    else:
        asked = [(others, False, False), (others, True, True)]
    for ask, known, xla in asked:
        _check_in_a_graph(name, ask, rights[ask], known, xla)


def _check_in_a_graph(name, ask, right, known, xla):
    """Of the same tensors, of which a graph knows the batch's size or not."""
    parts = ALL[name]().holders()
    held = [
        (k, attribute)
        for k, part in enumerate(parts)
        for attribute in part.rows
        if getattr(part, attribute) is not None
    ]
    tensors = [getattr(parts[k], attribute) for k, attribute in held]

    def compute(*tensors):
        def make():
            factor = ALL[name]()
            for (k, attribute), tensor in zip(held, tensors):
                setattr(factor.holders()[k], attribute, tensor)
            return factor

        return ask(make)

    specs = [
        tf.TensorSpec([N if known else None, *t.shape[1:]], t.dtype)
        for t in tensors
    ]
    graph = tf.function(
        compute, input_signature=specs, jit_compile=xla, autograph=False
    )
    for found, expected in zip(graph(*tensors), right, strict=True):
        _assert_close(found, expected)


@pytest.mark.parametrize("norms", [True, False])
@pytest.mark.parametrize("name", ALL)
def test_a_sample_that_is_not_kept_is_blank(name, norms):
    """Also where it is broken, and whether norms were asked before or not."""
    each = np.copy(gradients(name))
    each[~KEEP] = 0
    axes = tuple(range(1, each.ndim))
    flat = each.reshape(N, -1)
    direction = np.tensordot(WEIGHTS, each, 1)
    projection, projected = _projection(name)
    sound = ALL[name]()
    set_second(sound, 0)
    for value in (None, np.nan):
        factor = blanked(name, value, norms)
        _assert_close(factor.dot(direction), (each * direction).sum(axes))
        _assert_close(factor.gram(), flat @ flat.T)
        squares = dense(factor.sum_of_squares())
        _assert_close(squares, np.square(each).sum(0))
        factor = blanked(name, value, norms)
        found = tf.convert_to_tensor(factor.weighted_sum(None))
        np.testing.assert_allclose(found, each.sum(0), rtol=1e-10, atol=1e-12)
        _assert_close(factor.dot(direction), (each * direction).sum(axes))
        _assert_close(factor.project(projection), projected * KEEP[:, None])
        if name in SIDES:
            for one, other in zip(
                factor.kronecker()[:3], sound.kronecker()[:3]
            ):
                _assert_close(one, other)
            turned = factor.rotated(outputs=None).materialize()
            _assert_close(turned, sound.rotated().materialize())


def test_a_table_keeps_its_rows_where_each_entry_is_changed_by_itself():
    factor = factors.Widened(FACTORS["Rows"](), "float64")
    assert isinstance(factor.weighted_sum(None), tf.IndexedSlices)


class Three(factors.SampleGradients):
    """A class that answers no more than it must."""

    rows = ("scale",)

    def __init__(self, scale):
        self.scale = scale

    def squared_norms(self):
        return 6 * tf.square(self.scale)

    def weighted_sum(self, weights):
        scale = self.scale if weights is None else self.scale * weights
        return tf.reduce_sum(scale) * tf.ones((3, 2), scale.dtype)

    def materialize(self):
        return self.scale[:, None, None] * tf.ones((3, 2), self.scale.dtype)


def test_a_class_with_three_answers_has_the_others():
    numbers = tf.constant([1.0, 2.0, 3.0])
    for factor in (
        Three(numbers),
        factors.Widened(Three(tf.cast(numbers, tf.float16)), tf.float16),
        factors.Columns([Three(numbers), Three(numbers)]),
        factors.join([Three(numbers), Three(0 * numbers)]),
    ):
        columns = factor.materialize().shape[-1]
        direction = tf.ones((3, columns))
        products = 3 * columns * np.array([1, 2, 3])
        np.testing.assert_array_equal(factor.dot(direction), products)
        squares = np.full((3, columns), 14)
        np.testing.assert_array_equal(factor.sum_of_squares(), squares)
        pairs = 3 * columns * np.outer([1, 2, 3], [1, 2, 3])
        np.testing.assert_array_equal(factor.gram(), pairs)


class _Thrice:
    """For the bases of a class: other gradients than the next one's."""

    def materialize(self):
        return 3 * super().materialize()


class _ThriceOuter(_Thrice, factors.Outer):
    pass


class _ThriceRows(_Thrice, factors.Rows):
    pass


@pytest.mark.parametrize("name", ["Outer", "Rows"])
def test_a_class_of_other_gradients_has_none_of_its_bases_answers(name):
    kind, thrice = getattr(factors, name), globals()[f"_Thrice{name}"]
    if name == "Outer":
        parts = drawn(1, 3), drawn(1, 2)
    else:
        parts = tf.constant([[0, 1, 0]] * N), drawn(3, 2), [4, 2]
    plain, other = kind(*parts), thrice(*parts)
    direction = tf.ones(plain.materialize().shape[1:], tf.float64)
    for answer, times in (
        (lambda f: f.dot(direction), 3),
        (lambda f: f.sum_of_squares(), 9),
        (lambda f: f.gram(), 9),
        (lambda f: plain.gram(f), 3),
    ):
        right = times * tf.convert_to_tensor(answer(plain))
        np.testing.assert_allclose(answer(other), right, rtol=1e-10)


def test_what_is_squared_stays_in_single_precision():
    """300² is infinite in float16, and so are 512 products of 300."""
    large = tf.fill([2, 512], tf.constant(300, tf.float16))
    ids = tf.zeros([2, 512], tf.int32)
    for make in (
        lambda: factors.Full(large),
        lambda: factors.Outer(large[:, None], tf.ones_like(large[:, None, :1])),
        lambda: factors.Rows(ids[:, :1], large[:, None], (3, 512)),
        lambda: factors.Joined([factors.Full(large), factors.Full(large)]),
    ):
        right = make().materialize().numpy().astype("float64")
        factor = factors.Widened(make(), tf.float16)
        direction = 300 * np.ones(right.shape[1:])
        found = factor.dot(direction)
        products = (right * direction).reshape(2, -1).sum(1)
        np.testing.assert_allclose(found, products, rtol=1e-6)
        squares = factor.sum_of_squares()
        assert found.dtype == squares.dtype == tf.float32
        np.testing.assert_allclose(
            dense(squares), np.square(right).sum(0), rtol=1e-6
        )
