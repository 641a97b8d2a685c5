"""Outputs, losses and targets to draw from.

A head is (layers on h, the loss, the targets): source that may use `u`, the
width of the output, and `shape`, that of the targets. In losses of one's own
b is the target.
"""

#: Losses of one number whatever the reduction: weights would scale them.
PLAIN = "lambda"

_NORMAL = "rng.normal(size={shape})"
_ONE_HOT = "np.eye({u})[rng.integers({u}, size={rows})]"
_IDS = "rng.integers({u}, size={rows})"
_BITS = "rng.integers(2, size={shape}).astype('float64')"
_POSITIVE = "rng.gamma(2.0, size={shape})"
_SHARES = "rng.dirichlet(np.ones({u}), size={rows})"

_LINEAR = "L.Dense({u})(h)"
_SIGMOID = "L.Dense({u}, activation='sigmoid')(h)"
_SOFTMAX = "L.Dense({u}, activation='softmax')(h)"
_SOFTPLUS = "L.Dense({u}, activation='softplus')(h)"


def _keras(*rows):
    return [(layer, f"keras.losses.{loss}", y) for layer, loss, y in rows]


def _own(*losses):
    return [(_LINEAR, f"{PLAIN} b, a: {loss}", _NORMAL) for loss in losses]


#: Losses that treat each sample alone and have no kinks.
KERAS = _keras(
    (_LINEAR, "MeanSquaredError({r})", _NORMAL),
    ("h", "MeanSquaredError({r})", _NORMAL),
    (_SIGMOID, "BinaryCrossentropy({r})", _BITS),
    (_LINEAR, "BinaryCrossentropy(True, {r})", _BITS),
    (_SIGMOID, "BinaryFocalCrossentropy({r})", _BITS),
    (_SOFTMAX, "CategoricalCrossentropy({r})", _ONE_HOT),
    (_LINEAR, "CategoricalCrossentropy(True, 0.1, {r})", _ONE_HOT),
    (_SOFTMAX, "CategoricalFocalCrossentropy({r})", _ONE_HOT),
    (_SOFTMAX, "SparseCategoricalCrossentropy({r})", _IDS),
    (_LINEAR, "SparseCategoricalCrossentropy(True, {r})", _IDS),
    (_LINEAR, "SparseCategoricalCrossentropy(True, 0, {r})", _IDS),
    (_SOFTMAX, "KLDivergence({r})", _SHARES),
    (_SOFTPLUS, "Poisson({r})", _POSITIVE),
    (_SOFTPLUS, "MeanSquaredLogarithmicError({r})", _POSITIVE),
    (_LINEAR, "CosineSimilarity({r})", _NORMAL),
    (_LINEAR, "LogCosh({r})", _NORMAL),
)
OWN = _own(
    "ops.mean((a - b) ** 2, -1)",
    "ops.mean(ops.log(ops.cosh(a - b)))",
    "ops.sum((a - b) ** 2)",
    "ops.sum(ops.cast(b > 0, a.dtype) * (a - b) ** 2) / "
    "(1 + ops.sum(ops.cast(b > 0, a.dtype)))",
    "ops.mean(ops.where(b > 0, (a - b) ** 2, a**4))",
    "ops.mean((a - b) ** 2 / (1 + ops.sum(b**2, -1, keepdims=True)))",
)
KINKED = _keras(
    (_LINEAR, "MeanAbsoluteError({r})", _NORMAL),
    (_LINEAR, "Huber(0.5, {r})", _NORMAL),
    (_LINEAR, "Hinge({r})", _BITS),
    (_LINEAR, "SquaredHinge({r})", _BITS),
    (_LINEAR, "CategoricalHinge({r})", _ONE_HOT),
)
COUPLED = [
    *_keras(
        (_LINEAR, "CosineSimilarity(axis=0)", _NORMAL),
        (_SOFTMAX, "CategoricalCrossentropy(axis=0)", _ONE_HOT),
        (_SOFTMAX, "CategoricalFocalCrossentropy(axis=0)", _ONE_HOT),
        (_SIGMOID, "Dice()", _BITS),
        (_SIGMOID, "Tversky()", _BITS),
    ),
    (
        "L.Lambda(lambda h: ops.mean(h, 0))(h)",
        "lambda b, a: ops.mean((ops.mean(b, 0) - a) ** 2)",
        _NORMAL,
    ),
    *_own(
        "ops.mean((b - a - ops.mean(a, 0)) ** 2)",
        "ops.mean(ops.softmax(a @ ops.transpose(a)) * (b @ ops.transpose(b)))",
        "ops.sqrt(ops.sum((a - b) ** 2))",
        # Targets of others say how much an error weighs.
        "ops.mean((a - b) ** 2) / ops.mean(b**2)",
        "ops.mean((a - b) ** 2 / (1 + ops.max(b**2, 0)))",
        "ops.mean((a - (b - ops.mean(b, 0)) / (1 + ops.std(b, 0))) ** 2)",
        "ops.mean((a - ops.sort(b, 0)) ** 2)",
        "ops.mean((a - ops.roll(b, 1, 0)) ** 2)",
        "ops.mean((a - b) ** 2 * ops.softmax(b, 0))",
        "ops.sum((a - b) ** 2) / (3 + ops.sum(ops.tanh(b)))",
        "ops.mean((a - b) ** 2 * (1 + ops.cumsum(b[::-1] ** 2, 0)[::-1]))",
        "ops.mean(ops.where(ops.mean(b) > 0, (a - b) ** 2, a**2))",
        # The others say how much each class weighs.
        "ops.sum(ops.where(b > 0, (a - b) ** 2, 0)) / "
        "(1 + ops.sum(ops.cast(b > 0, a.dtype))) + "
        "ops.sum(ops.where(b > 0, 0, (a - b) ** 2)) / "
        "(1 + ops.sum(ops.cast(b <= 0, a.dtype)))",
        "ops.sum(ops.where(b > 0, "
        "(a - b) ** 2 / (1 + ops.sum(ops.cast(b > 0, a.dtype))), "
        "(a - b) ** 2 / (1 + ops.sum(ops.cast(b <= 0, a.dtype)))))",
        # Outputs of others.
        "ops.mean((a - b) ** 2) / (1 + ops.mean(a**2))",
        "ops.mean(ops.logsumexp(a @ ops.transpose(b), -1) - "
        "ops.sum(a * b, -1))",
        "ops.mean(ops.log(1 + ops.exp(ops.roll(a, 1, 0) - a)))",
        "ops.mean(ops.abs(ops.expand_dims(a, 0) - "
        "ops.expand_dims(a, 1)) ** 1.5 + (a - b) ** 2)",
        "ops.max(ops.mean((a - b) ** 2, -1))",
        "ops.log(ops.mean((a - b) ** 2))",
        "ops.mean((a - b) ** 2) ** 2",
        "ops.cond(ops.mean(a) > 0, lambda: ops.mean((a - b) ** 2), "
        "lambda: ops.mean(a**2))",
    ),
]


def write(head, reduction, n, u, shape):
    """Fills the templates of a head.

    Args:
        head: one of the above.
        reduction: the loss's, or None for the default.
        n: the number of samples.
        u: the width of the output.
        shape: of h, without the samples.
    """
    rows = (n, *shape[:-1])
    r = f"reduction={reduction!r}" if reduction else ""
    return tuple(
        text.format(u=u, rows=rows, shape=(*rows, u), r=r) for text in head
    )
