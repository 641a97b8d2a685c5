"""Outputs, losses and targets to draw from.

A head is (layers on h, the loss, the targets): source that may use `u`, the
width of the output, and `shape`, that of the targets. In losses b is the
target where it comes first.
"""

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

SOUND = [
    (_LINEAR, "keras.losses.MeanSquaredError({r})", _NORMAL),
    ("h", "keras.losses.MeanSquaredError({r})", _NORMAL),
    (_SIGMOID, "keras.losses.BinaryCrossentropy({r})", _BITS),
    (_LINEAR, "keras.losses.BinaryCrossentropy(True, {r})", _BITS),
    (_SIGMOID, "keras.losses.BinaryFocalCrossentropy({r})", _BITS),
    (_SOFTMAX, "keras.losses.CategoricalCrossentropy({r})", _ONE_HOT),
    (
        _LINEAR,
        "keras.losses.CategoricalCrossentropy(True, label_smoothing=0.1, {r})",
        _ONE_HOT,
    ),
    (_SOFTMAX, "keras.losses.CategoricalFocalCrossentropy({r})", _ONE_HOT),
    (_SOFTMAX, "keras.losses.SparseCategoricalCrossentropy({r})", _IDS),
    (_LINEAR, "keras.losses.SparseCategoricalCrossentropy(True, {r})", _IDS),
    (
        _LINEAR,
        "keras.losses.SparseCategoricalCrossentropy("
        "from_logits=True, ignore_class=0, {r})",
        _IDS,
    ),
    (_SOFTMAX, "keras.losses.KLDivergence({r})", _SHARES),
    (_SOFTPLUS, "keras.losses.Poisson({r})", _POSITIVE),
    (_SOFTPLUS, "keras.losses.MeanSquaredLogarithmicError({r})", _POSITIVE),
    (_LINEAR, "keras.losses.CosineSimilarity({r})", _NORMAL),
    (_LINEAR, "keras.losses.LogCosh({r})", _NORMAL),
    (_LINEAR, "lambda a, b: ops.mean((a - b) ** 2, -1)", _NORMAL),
    (_LINEAR, "lambda a, b: ops.mean(ops.log(ops.cosh(a - b)))", _NORMAL),
    (_LINEAR, "lambda a, b: ops.sum((a - b) ** 2)", _NORMAL),
    (
        _LINEAR,
        "lambda b, a: ops.sum(ops.cast(b > 0, a.dtype) * (a - b) ** 2) / "
        "(1 + ops.sum(ops.cast(b > 0, a.dtype)))",
        _NORMAL,
    ),
    (
        _LINEAR,
        "lambda b, a: ops.mean(ops.where(b > 0, (a - b) ** 2, a**4))",
        _NORMAL,
    ),
    (
        _LINEAR,
        "lambda b, a: ops.mean((a - b) ** 2 / (1 + ops.sum(b**2, -1, "
        "keepdims=True)))",
        _NORMAL,
    ),
]
KINKED = [
    (_LINEAR, "keras.losses.MeanAbsoluteError({r})", _NORMAL),
    (_LINEAR, "keras.losses.Huber(0.5, {r})", _NORMAL),
    (_LINEAR, "keras.losses.Hinge({r})", _BITS),
    (_LINEAR, "keras.losses.SquaredHinge({r})", _BITS),
    (_LINEAR, "keras.losses.CategoricalHinge({r})", _ONE_HOT),
]
COUPLED = [
    (_LINEAR, "keras.losses.CosineSimilarity(axis=0)", _NORMAL),
    (_SOFTMAX, "keras.losses.CategoricalCrossentropy(axis=0)", _ONE_HOT),
    (_SOFTMAX, "keras.losses.CategoricalFocalCrossentropy(axis=0)", _ONE_HOT),
    (_SIGMOID, "keras.losses.Dice()", _BITS),
    (_SIGMOID, "keras.losses.Tversky()", _BITS),
    (
        _LINEAR,
        "lambda a, b: ops.mean((a - b - ops.mean(b, 0)) ** 2)",
        _NORMAL,
    ),
    (
        _LINEAR,
        "lambda a, b: ops.mean(ops.softmax(b @ ops.transpose(b)) * (a @ "
        "ops.transpose(a)))",
        _NORMAL,
    ),
    (
        _LINEAR,
        "lambda a, b: ops.sqrt(ops.sum((a - b) ** 2))",
        _NORMAL,
    ),
    (
        "L.Lambda(lambda h: ops.mean(h, 0))(h)",
        "lambda a, b: ops.mean((ops.mean(a, 0) - b) ** 2)",
        _NORMAL,
    ),
    *(
        (_LINEAR, f"lambda b, a: {text}", _NORMAL)
        for text in (
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
        )
    ),
]
#: Losses of one number whatever the reduction: weights would scale them.
PLAIN = "lambda"


def write(head, reduction, n, u, shape):
    """Fills the templates of a head.

    Args:
        head: one of the above.
        reduction: the loss's, or None for the default.
        n: the number of samples.
        u: the width of the output.
        shape: of h, without the samples.
    """
    layer, loss, targets = head
    rows = (n, *shape[:-1])
    values = {
        "u": u,
        "rows": rows,
        "shape": (*rows, u),
        "r": f"reduction={reduction!r}" if reduction else "",
    }
    return tuple(text.format(**values) for text in (layer, loss, targets))
