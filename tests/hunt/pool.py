"""What random models are drawn from: expressions in `h`, by its shape.

A shape leaves the samples out: (d,), (positions, d), (rows, columns, d) or
(depth, rows, columns, d). A maker is given a `Draw` and the shape of h and
returns an expression with the shape of its value, or None where it does not
fit.
"""

import re

from tests.hunt import layers

#: No axis gets longer than this.
LARGEST = 12
#: Half precision stays close only where there is no kink.
SMOOTH = ("tanh", "sigmoid", "gelu", "softplus", "silu", "softmax", None)
KINKED = ("relu", "leaky_relu", "elu", "hard_sigmoid")


class Draw:
    """Random choices, and what the case to be drawn allows.

    Args:
        rng: a `numpy.random.Generator`.
        smooth: whether ops with kinks are left out.
    """

    def __init__(self, rng, smooth=False):
        self.rng, self.smooth = rng, smooth

    def one(self, options):
        """One of the options, all equally likely."""
        return options[int(self.rng.integers(len(options)))]

    def chance(self, p):
        """True with probability p."""
        return bool(self.rng.random() < p)

    def activation(self):
        """The name of an activation, quoted, or None."""
        return repr(self.one(SMOOTH if self.smooth else SMOOTH + KINKED))


def _own(name, ranks, widths=None):
    """A maker of a layer of `layers` that keeps the shape."""
    forms = getattr(layers, name).FORMS

    def make(draw, shape):
        if len(shape) not in ranks:
            return None
        smooth = getattr(getattr(layers, name), "SMOOTH", forms)
        form = draw.one(smooth if draw.smooth else forms)
        if widths and widths.get(form, lambda s: True)(shape) is False:
            return None
        return f"{name}({form!r})(h)", _changed(name, form, shape)

    make.__name__ = name
    return make


def _changed(name, form, shape):
    *others, d = shape
    if name == "Token":
        return (others[0] + 1, d)
    if name == "Steps":
        return (d,)
    if name == "Attends" and form == "learned_queries":
        return (2, d)
    if name == "Broadcast" and form == "concat":
        return (*others, 2 * d)
    return tuple(shape)


def _two(draw, shape):
    form, d = draw.one(layers.Two.FORMS), shape[-1]
    if form == "split" and d < 2:
        return None
    width = {"squared": d + 1, "variational": 3 * d, "split": d}
    return f"Join()(Two({form!r})(h))", (*shape[:-1], width.get(form, 2 * d))


def _keras(ranks, text, change=lambda s, v: s, **options):
    """A maker of a layer of Keras from a template and its options."""

    def make(draw, shape):
        if len(shape) not in ranks:
            return None
        values = {k: draw.one(v) for k, v in options.items()}
        values.update(a=draw.activation(), d=shape[-1], rank=len(shape) - 1)
        new = change(shape, values)
        if new is None or any(size is None or size < 1 for size in new):
            return None
        return text.format(**values), tuple(new)

    make.__name__ = text.split("(")[0].removeprefix("L.")
    return make


def _units(shape, values):
    return (*shape[:-1], values["u"])


def _valid(shape, values):
    """The shape after windows without padding."""
    k, s = values.get("k", 2), values.get("s", 1)
    reach = (k - 1) * values.get("r", 1) + 1
    if values.get("p") == "same":
        sizes = [-(-size // s) for size in shape[:-1]]
    else:
        sizes = [(size - reach) // s + 1 for size in shape[:-1]]
    if min(shape[:-1]) < reach:
        return None
    return (*sizes, values.get("u", shape[-1] * values.get("m", 1)))


def _grouped(shape, values):
    if shape[-1] % 2:
        return None
    return _valid(shape, {**values, "u": 4})


def _spread(shape, values):
    sizes = [size * values["s"] for size in shape[:-1]]
    return (*sizes, values["u"])


def _last(shape, values):
    return (values["u"],)


ANY, FLAT, LINE = (1, 2, 3), (1,), (2,)
U = [2, 3, 4, 5]
_MAKERS = {
    "own": [
        _own("Meets", ANY),
        _own("Meets", ANY),
        _own("Scalar", ANY),
        _own("Broadcast", ANY),
        _own("Looked", ANY),
        _own("Kernel", ANY, {"concat": lambda s: s[-1] > 2}),
        _own("Kernel", FLAT + LINE, {"concat": lambda s: s[-1] > 2}),
        _own("Vector", ANY),
        _own("Matrix", FLAT),
        _own("Mixture", FLAT),
        _own("Gate", ANY),
        _own("Backward", ANY),
        _own("Keeps", ANY),
        _own("Unused", ANY),
        _own("Penalised", ANY),
        _own("AddsLoss", ANY),
        _keras(ANY, "AddsLoss('sum')(h)"),
        _own("Inside", FLAT),
        _own("Nested", ANY),
        _own("OverSamples", FLAT),
        _own("Loop", FLAT),
        _own("Turns", FLAT),
        _own("Chooses", ANY),
        _own("Derives", ANY),
        _own("Lies", LINE),
        _own("Added", LINE),
        _own("Positions", LINE),
        _own("Filters", LINE, {"grouped": lambda s: s[-1] % 2 == 0}),
        _own("Attends", LINE),
        _own("Attends", LINE),
        _own("Token", LINE),
        _own("Norm", ANY),
        _own("Squeeze", (2, 3)),
        _own("Steps", LINE),
        _two,
    ],
    "keras": [
        _keras(ANY, "L.Dense({u}, activation={a})(h)", _units, u=U),
        _keras(ANY, "L.Dense({u}, use_bias=False)(h)", _units, u=U),
        _keras(
            ANY,
            "L.Dense({u}, kernel_regularizer='{r}')(h)",
            _units,
            u=U,
            r=["l2", "l1", "orthogonal_regularizer"],
        ),
        _keras(
            ANY,
            "L.Dense({u}, activity_regularizer='{r}')(h)",
            _units,
            u=U,
            r=["l2", "l1"],
        ),
        _keras(ANY, "(lambda d: d(d(h)))(L.Dense({d}, activation={a}))"),
        _keras(ANY, "L.Add()([h, L.Dense({d}, activation={a})(h)])"),
        _keras(
            ANY,
            "(lambda d: L.Multiply()([d(h), d(L.Activation('tanh')(h))]))"
            "(L.Dense({u}))",
            _units,
            u=U,
        ),
        _keras(FLAT, "L.SpectralNormalization(L.Dense({u}))(h)", _units, u=U),
        _keras(ANY, "L.LayerNormalization({o})(h)", o=["", "center=False"]),
        _keras(ANY, "L.UnitNormalization()(h)"),
        _keras((*LINE, 3), "L.GroupNormalization(1)(h)"),
        _keras(ANY, "L.BatchNormalization(trainable=False)(h)"),
        _keras(ANY, "L.ActivityRegularization(l2=0.1)(h)"),
        _keras(
            FLAT,
            "L.EinsumDense('ab,bc->ac', {u}, bias_axes='c')(h)",
            lambda s, v: (v["u"],),
            u=U,
        ),
        _keras(
            LINE,
            "L.EinsumDense('abc,bd->adc', ({u}, {d}))(h)",
            lambda s, v: (v["u"], s[1]),
            u=U,
        ),
        _keras(
            LINE,
            "L.Conv1D({u}, {k}, strides={s}, padding='{p}', activation={a})(h)",
            _valid,
            u=U,
            k=[1, 2, 3],
            s=[1, 2, 2],
            p=["valid", "same"],
        ),
        _keras(
            LINE,
            "L.Conv1D({u}, 2, dilation_rate={r})(h)",
            _valid,
            u=U,
            k=[2],
            r=[1, 2],
        ),
        _keras(
            LINE,
            "L.Conv1D({u}, 2, padding='causal')(h)",
            lambda s, v: (s[0], v["u"]),
            u=U,
        ),
        _keras((2, 3), "L.Conv{rank}D(4, 2, groups=2)(h)", _grouped),
        _keras(
            (2, 3),
            "L.Conv{rank}D({u}, 2, strides={s})(h)",
            _valid,
            u=U,
            s=[2],
        ),
        _keras(
            (2, 3),
            "L.DepthwiseConv{rank}D(2, depth_multiplier={m})(h)",
            _valid,
            m=[1, 2],
        ),
        _keras((2, 3), "L.SeparableConv{rank}D({u}, 2)(h)", _valid, u=U),
        _keras(
            (2, 3),
            "L.Conv{rank}DTranspose({u}, 2, strides={s}, padding='same')(h)",
            _spread,
            u=U,
            s=[1, 2],
        ),
        _keras(
            (3,),
            "L.Conv2D({u}, {k}, strides={s}, padding='{p}', activation={a})(h)",
            _valid,
            u=U,
            k=[1, 2, 3],
            s=[1, 2, 2],
            p=["valid", "same"],
        ),
        _keras((4,), "L.Conv3D({u}, 2, activation={a})(h)", _valid, u=U),
        _keras(
            (4,),
            "L.Conv3DTranspose({u}, 2, strides=1, padding='same')(h)",
            lambda s, v: (*s[:-1], v["u"]),
            u=U,
        ),
        _keras(
            (2, 3),
            "L.AveragePooling{rank}D(2)(h)",
            lambda s, v: _valid(s, {"k": 2, "s": 2}),
        ),
        _keras(
            (2, 3),
            "L.ZeroPadding{rank}D(1)(h)",
            lambda s, v: (*(size + 2 for size in s[:-1]), s[-1]),
        ),
        _keras(
            LINE,
            "L.{r}({u}, return_sequences=True)(h)",
            _units,
            u=U,
            r=["LSTM", "GRU", "SimpleRNN"],
        ),
        _keras(
            LINE,
            "L.{r}({u}{o})(h)",
            _last,
            u=U,
            r=["LSTM", "GRU", "SimpleRNN"],
            o=["", ", go_backwards=True", ", use_bias=False"],
        ),
        _keras(
            LINE,
            "L.Bidirectional(L.{r}({u}))(h)",
            lambda s, v: (2 * v["u"],),
            u=[2, 3],
            r=["LSTM", "GRU"],
        ),
        _keras(LINE, "L.RNN([L.LSTMCell({u}), L.GRUCell({u})])(h)", _last, u=U),
        _keras(
            LINE,
            "L.Flatten()(L.ConvLSTM1D(2, 2)(L.Reshape((*h.shape[1:], 1))(h)))",
            lambda s, v: (2 * (s[1] - 1),),
        ),
        _keras(LINE, "L.TimeDistributed(L.Dense({u}))(h)", _units, u=U),
        _keras(LINE, "L.MultiHeadAttention({u}, 2)(h, h)", u=[1, 2]),
        _keras(LINE, "L.GroupQueryAttention(2, 2, {u})(h, h)", u=[1, 2]),
        _keras(LINE, "L.Attention(use_scale=True)([h, h])"),
        _keras(
            LINE,
            "L.Attention(use_scale=True)"
            "([h, h], return_attention_scores=True)[0]",
        ),
        _keras(LINE, "L.AdditiveAttention()([h, h])"),
    ],
    "again": [
        _own("Again", ANY),
        _own("AgainComplex", ANY),
        _own("AgainDerived", ANY),
    ],
    "random": [
        _keras(ANY, "L.Dropout(0.4)(h)"),
        _keras(ANY, "L.GaussianNoise(0.3)(h)"),
        _keras(LINE, "L.SpatialDropout1D(0.4)(h)"),
        _keras(LINE, "L.LSTM({u}, dropout=0.3)(h)", _last, u=U),
        _keras(LINE, "L.MultiHeadAttention(2, 2, dropout=0.3)(h, h)"),
    ],
    "kinked": [
        _keras(ANY, "L.PReLU()(h)"),
        _keras(
            (2, 3),
            "L.MaxPooling{rank}D(2)(h)",
            lambda s, v: _valid(s, {"k": 2, "s": 2}),
        ),
    ],
}


def block(draw, shape, kind):
    """An expression that fits on `shape`, and the shape of its value."""
    while True:
        made = draw.one(_MAKERS[kind])(draw, shape)
        # Keras cannot add up losses of half precision.
        adds = made and re.search("AddsLoss|ctivity|regularized", made[0])
        if (
            made
            and max(made[1]) <= max(LARGEST, *shape)
            and not (draw.smooth and adds)
        ):
            return made


def smaller(draw, shape):
    """An expression that takes axes between samples and features away."""
    d = shape[-1]
    rank = len(shape) - 1
    options = [
        (f"L.GlobalAveragePooling{rank}D()(h)", (d,)),
        (f"L.GlobalAveragePooling{rank}D()(h)", (d,)),
    ]
    flat = d
    for size in shape[:-1]:
        flat *= size
    if flat <= LARGEST:
        options.append(("L.Flatten()(h)", (flat,)))
    if rank == 1:
        options.append(("h[:, 0]", (d,)))
    if rank == 2:
        rows = shape[0] * shape[1]
        if rows <= LARGEST:
            options.append((f"L.Reshape(({rows}, {d}))(h)", (rows, d)))
    return draw.one(options)
