"""What every factor answers, against its gradients written out."""

import inspect

import numpy as np
import pytest
import tensorflow as tf

from keras_pergrad import factors
from keras_pergrad.factors import by_chunks

N = 4
KEEP = np.array([True, False, True, True])
WEIGHTS = np.array([0.5, 1.0, 2.0, 0.25])


class Turned(factors.Adapted):
    """Of a matrix whose rows are in reverse order."""

    def change(self, tensor):
        return tf.reverse(tensor, [tensor.shape.rank - 2])

    def squared_norms(self):
        return self.factor.squared_norms()


def drawn(*shape):
    rng = np.random.default_rng(shape)
    return tf.constant(rng.normal(size=(N, *shape)))


def rows(*shape):
    ids = np.random.default_rng(shape).integers(0, 5, (N, *shape))
    return factors.Rows(tf.constant(ids), drawn(*shape, 3), (5, 3))


def patches():
    windows = factors.Windows.of((8,), (3,), (1,), (1,), "valid")
    return factors.Patches(drawn(8, 2), drawn(6, 4), windows, (3, 2, 4))


#: A factor whose tensors nothing else has held before.
FACTORS = {
    "Full": lambda: factors.Full(drawn(3, 2)),
    "Sum": lambda: factors.Sum(drawn(7, 3)),
    "Product": lambda: factors.Product(drawn(7, 3), drawn(7, 3)),
    "Outer": lambda: factors.Outer(drawn(4), drawn(6)),
    "Outer of positions": lambda: factors.Outer(drawn(2, 4), drawn(2, 6)),
    "Outer of few positions": lambda: factors.Outer(
        drawn(2, 3, 40), drawn(2, 3, 60)
    ),
    "Outer turned": lambda: factors.Outer(
        drawn(9, 4), drawn(9, 6), [6, 4], [1, 0], [4, 6]
    ),
    "Blocks": lambda: factors.Blocks(drawn(2, 5, 3), drawn(2, 5, 4)),
    "Rows": lambda: rows(6),
    "Patches": patches,
    "Columns": lambda: factors.Columns(
        [factors.Full(drawn(3, 2)), factors.Outer(drawn(3), drawn(4))]
    ),
    "Joined": lambda: factors.Joined(
        [factors.Full(drawn(3, 4)), factors.Outer(drawn(3), drawn(4))]
    ),
    "join of look-ups": lambda: factors.join([rows(6), rows(2)]),
    "join of a table and a matrix": lambda: factors.join(
        [rows(6), factors.Outer(drawn(2, 5), drawn(2, 3))]
    ),
    "Adapted": lambda: Turned(factors.Outer(drawn(4), drawn(6))),
    "Adapted table": lambda: Turned(rows(6)),
    "Widened": lambda: factors.Widened(factors.Sum(drawn(7, 3)), "float64"),
}


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


@pytest.mark.parametrize("name", FACTORS)
def test_norms_and_sums_are_those_of_the_gradients(name):
    make = FACTORS[name]
    gradients = make().materialize().numpy()
    assert gradients.shape[0] == N
    expected = np.square(gradients).reshape(N, -1).sum(1)
    factor = make()
    np.testing.assert_allclose(factor.squared_norms(), expected, rtol=1e-10)
    total = np.square(gradients.sum(0)).sum()
    np.testing.assert_allclose(factor.squared_norm_of_sum(), total, rtol=1e-10)
    for one in (factor, make()):  # with norms before, and without
        for weights in (None, WEIGHTS):
            found = tf.convert_to_tensor(one.weighted_sum(weights))
            scale = np.ones(N) if weights is None else weights
            right = np.tensordot(scale, gradients, 1)
            np.testing.assert_allclose(found, right, rtol=1e-10, atol=1e-12)


def test_a_table_keeps_its_rows_where_each_entry_is_changed_by_itself():
    factor = factors.Widened(rows(6), "float64")
    assert isinstance(factor.weighted_sum(None), tf.IndexedSlices)


def _dense(gradient):
    return tf.convert_to_tensor(gradient).numpy()


def _held(make):
    """Return a factor whose norms are known."""
    factor = make()
    factor.squared_norms()
    return factor


def _all_held(make):
    factor = make()
    factor.materialize()
    return factor


HELD = {"new": lambda make: make(), "norms": _held, "gradients": _all_held}


@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize("name", FACTORS)
def test_products_and_squares_are_those_of_the_gradients(name, held):
    gradients = FACTORS[name]().materialize().numpy()
    axes = tuple(range(1, gradients.ndim))
    factor = HELD[held](FACTORS[name])
    direction = np.random.default_rng(7).normal(size=gradients.shape[1:])
    limits = {"rtol": 1e-10, "atol": 1e-10}
    for one in (direction, tf.constant(direction, tf.float64)):
        expected = (gradients * direction).sum(axes)
        np.testing.assert_allclose(factor.dot(one), expected, **limits)
    slices = tf.IndexedSlices(
        tf.constant(direction[[1, 0, 1]]), [1, 0, 1], gradients.shape[1:]
    )
    right = (gradients * _dense(slices)).sum(axes)
    np.testing.assert_allclose(factor.dot(slices), right, **limits)
    squares = np.square(gradients).sum(0)
    np.testing.assert_allclose(
        _dense(factor.sum_of_squares()), squares, **limits
    )
    total = factor.weighted_sum(None)
    assert isinstance(factor.sum_of_squares(), type(total))
    products = (gradients * gradients.sum(0)).sum(axes)
    np.testing.assert_allclose(factor.dot(total), products, **limits)


@pytest.mark.parametrize("xla", [False, True])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("name", FACTORS)
def test_products_and_squares_are_the_same_in_a_graph(name, known, xla):
    eager = FACTORS[name]()
    direction = _dense(eager.weighted_sum(WEIGHTS))
    right = eager.dot(direction), _dense(eager.sum_of_squares())
    # The same tensors, of which a graph knows the shape or not.
    held = [
        (k, name)
        for k, part in enumerate(eager.holders())
        for name in part.rows
        if name not in ("_gradients", "_unfolded")
    ]
    parts = FACTORS[name]().holders()
    tensors = [getattr(parts[k], name) for k, name in held]

    def compute(*tensors):
        factor = FACTORS[name]()
        for (k, attribute), tensor in zip(held, tensors):
            setattr(factor.holders()[k], attribute, tensor)
        dots = factor.dot(direction)
        return dots, tf.convert_to_tensor(factor.sum_of_squares())

    specs = [
        tf.TensorSpec([N if known else None, *t.shape[1:]], t.dtype)
        for t in tensors
    ]
    found = tf.function(
        compute, input_signature=specs, jit_compile=xla, autograph=False
    )(*tensors)
    for one, other in zip(found, right):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)


def _cut(factor, first):
    """Return a factor without its first samples."""
    for part in factor.holders():
        for name in (*part.rows, "ids"):
            value = getattr(part, name, None)
            if value is not None:
                setattr(part, name, value[first:])
    return factor


@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize("name", FACTORS)
def test_products_of_all_pairs(name, held):
    gradients = FACTORS[name]().materialize().numpy().reshape(N, -1)
    limits = {"rtol": 1e-10, "atol": 1e-10}
    pairs = gradients @ gradients.T
    factor = HELD[held](FACTORS[name])
    np.testing.assert_allclose(factor.gram(), pairs, **limits)
    for other in (FACTORS[name](), factor):
        other = _cut(other, 1)
        others = other.materialize().numpy()
        right = gradients @ others.reshape(N - 1, -1).T
        new = _cut(FACTORS[name](), 1)
        factor = HELD[held](FACTORS[name])
        for one in (other, new, factors.Full(tf.constant(others))):
            np.testing.assert_allclose(factor.gram(one), right, **limits)
        full = factors.Full(FACTORS[name]().materialize())
        np.testing.assert_allclose(full.gram(new), right, **limits)


@pytest.mark.parametrize("xla", [False, True])
@pytest.mark.parametrize("name", FACTORS)
def test_products_of_all_pairs_in_a_graph(name, xla):
    def pairs():
        factor = FACTORS[name]()
        return factor.gram(), factor.gram(_cut(FACTORS[name](), 2))

    gradients = FACTORS[name]().materialize().numpy().reshape(N, -1)
    found = tf.function(pairs, jit_compile=xla, autograph=False)()
    for one, others in zip(found, (gradients, gradients[2:])):
        right = gradients @ others.T
        np.testing.assert_allclose(one, right, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("norms", [True, False])
@pytest.mark.parametrize("name", FACTORS)
def test_a_broken_sample_that_is_blank_breaks_no_other(name, norms):
    factor, right = FACTORS[name](), FACTORS[name]()
    for one in (factor, right):
        for part in one.holders():
            for tensor in part.rows:
                value = getattr(part, tensor)
                if value is None:
                    continue
                broken = np.array(value)
                broken[1] = 0 if one is right else np.nan
                setattr(part, tensor, tf.constant(broken))
    if norms:
        factor.squared_norms()
    factor.select(tf.constant(KEEP))
    direction = _dense(right.weighted_sum(WEIGHTS))
    limits = {"rtol": 1e-10, "atol": 1e-10}
    np.testing.assert_allclose(
        factor.dot(direction), right.dot(direction), **limits
    )
    np.testing.assert_allclose(factor.gram(), right.gram(), **limits)
    np.testing.assert_allclose(
        _dense(factor.sum_of_squares()),
        _dense(right.sum_of_squares()),
        **limits,
    )


@pytest.mark.parametrize("numbers", [1, 20, 60])
@pytest.mark.parametrize("name", FACTORS)
def test_squares_are_added_chunk_by_chunk(name, numbers, monkeypatch):
    """Of a sample, of a few with a rest, of nearly all."""
    right = np.square(FACTORS[name]().materialize()).sum(0)
    monkeypatch.setattr(by_chunks, "HELD", numbers)
    found = _dense(FACTORS[name]().sum_of_squares())
    np.testing.assert_allclose(found, right, rtol=1e-10, atol=1e-10)
    under_xla = tf.function(
        lambda: tf.convert_to_tensor(FACTORS[name]().sum_of_squares()),
        jit_compile=True,
        autograph=False,
    )
    np.testing.assert_allclose(under_xla(), right, rtol=1e-10, atol=1e-10)


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
            _dense(squares), np.square(right).sum(0), rtol=1e-6
        )


@pytest.mark.parametrize("norms", [True, False])
@pytest.mark.parametrize("name", FACTORS)
def test_a_sample_is_blank_that_is_not_kept(name, norms):
    factor = FACTORS[name]()
    gradients = FACTORS[name]().materialize().numpy()
    if norms:
        factor.squared_norms()
    factor.select(tf.constant(KEEP))
    found = tf.convert_to_tensor(factor.weighted_sum(None))
    expected = gradients[KEEP].sum(0)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)
    products = (gradients * expected).reshape(N, -1).sum(1) * KEEP
    limits = {"rtol": 1e-10, "atol": 1e-10}
    np.testing.assert_allclose(factor.dot(expected), products, **limits)
    squares = np.square(gradients[KEEP]).sum(0)
    np.testing.assert_allclose(
        _dense(factor.sum_of_squares()), squares, **limits
    )


@pytest.mark.parametrize("name", FACTORS)
def test_methods_and_bytes_are_told(name):
    factor = FACTORS[name]()
    assert isinstance(factor.chosen_method(), str)
    assert isinstance(factor.sum_method(), str)
    held = factor.norm_bytes(N)
    assert held is None or held > 0
