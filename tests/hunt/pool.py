"""What random models are drawn from: expressions in `h`, by its rank.

A field in braces is drawn from `_OPTIONS`, or is a layer of `layers` in one
of its forms.
"""

import functools
import math
import re

import keras

from tests.hunt import layers

#: No axis gets longer than this.
LARGEST = 12
#: Half precision stays close only where there is no kink.
_SMOOTH = ("tanh", "sigmoid", "gelu", "softplus", "silu", "softmax", None)
_KINKED = ("relu", "leaky_relu", "elu", "hard_sigmoid")
_OPTIONS = {
    "u": [2, 3, 4, 5],
    "few": [1, 2],
    "window": [1, 2, 3],
    "stride": [1, 2, 2],
    "padding": ["'valid'", "'same'"],
    "penalty": ["'l2'", "'l1'", "'orthogonal_regularizer'"],
    "norm": ["'l2'", "'l1'"],
    "centre": ["", "center=False"],
    "rnn": ["LSTM", "GRU", "SimpleRNN"],
    "gated": ["LSTM", "GRU"],
    "way": ["", ", go_backwards=True", ", use_bias=False"],
}
ANY, FLAT, LINE, PLANE, SPACE = (1, 2, 3), (1,), (2,), (3,), (4,)


def _own(names):
    return [f"{{{name}}}(h)" for name in names.split()]


#: Expressions of each kind by the ranks of h that they take.
_TEMPLATES = {
    "own": {
        ANY: [
            *_own("Meets Meets Scalar Broadcast Looked Kernel Vector Gate"),
            *_own("Backward Keeps Unused Penalised AddsLoss Nested Chooses"),
            *_own("Derives Norm"),
            "AddsLoss('sum')(h)",
            "Join()({Two}(h))",
        ],
        FLAT: _own("Kernel Matrix Mixture Inside OverSamples Loop Turns"),
        LINE: [
            *_own("Kernel Lies Added Positions Filters Attends Attends"),
            *_own("Token Steps"),
        ],
        (2, 3): _own("Squeeze"),
    },
    "keras": {
        ANY: [
            "L.Dense({u}, activation={a})(h)",
            "L.Dense({u}, use_bias=False)(h)",
            "L.Dense({u}, kernel_regularizer={penalty})(h)",
            "L.Dense({u}, activity_regularizer={norm})(h)",
            "(lambda d: d(d(h)))(L.Dense({d}, activation={a}))",
            "L.Add()([h, L.Dense({d}, activation={a})(h)])",
            "(lambda d: L.Multiply()([d(h), d(L.Activation('tanh')(h))]))"
            "(L.Dense({u}))",
            "L.LayerNormalization({centre})(h)",
            "L.UnitNormalization()(h)",
            "L.BatchNormalization(trainable=False)(h)",
            "L.ActivityRegularization(l2=0.1)(h)",
        ],
        FLAT: [
            "L.SpectralNormalization(L.Dense({u}))(h)",
            "L.EinsumDense('ab,bc->ac', {u}, bias_axes='c')(h)",
        ],
        LINE: [
            "L.EinsumDense('abc,bd->adc', ({u}, {d}))(h)",
            "L.Conv1D({u}, {window}, strides={stride}, padding={padding}, "
            "activation={a})(h)",
            "L.Conv1D({u}, 2, dilation_rate={few})(h)",
            "L.Conv1D({u}, 2, padding='causal')(h)",
            "L.{rnn}({u}, return_sequences=True)(h)",
            "L.{rnn}({u}{way})(h)",
            "L.Bidirectional(L.{gated}({u}))(h)",
            "L.RNN([L.LSTMCell({u}), L.GRUCell({u})])(h)",
            "L.Flatten()(L.ConvLSTM1D(2, 2)(L.Reshape((*h.shape[1:], 1))(h)))",
            "L.TimeDistributed(L.Dense({u}))(h)",
            "L.MultiHeadAttention({few}, 2)(h, h)",
            "L.GroupQueryAttention(2, 2, {few})(h, h)",
            "L.Attention(use_scale=True)([h, h])",
            "L.Attention(use_scale=True)"
            "([h, h], return_attention_scores=True)[0]",
            "L.AdditiveAttention()([h, h])",
        ],
        (2, 3): [
            "L.GroupNormalization(1)(h)",
            "L.Conv{rank}D(4, 2, groups=2)(h)",
            "L.Conv{rank}D({u}, 2, strides=2)(h)",
            "L.DepthwiseConv{rank}D(2, depth_multiplier={few})(h)",
            "L.SeparableConv{rank}D({u}, 2)(h)",
            "L.Conv{rank}DTranspose({u}, 2, strides={few}, padding='same')(h)",
            "L.AveragePooling{rank}D(2)(h)",
            "L.ZeroPadding{rank}D(1)(h)",
        ],
        PLANE: [
            "L.Conv2D({u}, {window}, strides={stride}, padding={padding}, "
            "activation={a})(h)",
        ],
        SPACE: [
            "L.Conv3D({u}, 2, activation={a})(h)",
            "L.Conv3DTranspose({u}, 2, strides=1, padding='same')(h)",
        ],
    },
    "again": {ANY: _own("Again AgainComplex AgainDerived")},
    "random": {
        ANY: ["L.Dropout(0.4)(h)", "L.GaussianNoise(0.3)(h)"],
        LINE: [
            "L.SpatialDropout1D(0.4)(h)",
            "L.LSTM({u}, dropout=0.3)(h)",
            "L.MultiHeadAttention(2, 2, dropout=0.3)(h, h)",
        ],
    },
    "kinked": {
        ANY: ["L.PReLU()(h)"],
        (2, 3): ["L.MaxPooling{rank}D(2)(h)"],
    },
}
#: Layers of one's own that do not keep the shape.
_CHANGING = "Attends Broadcast Filters Numbers Steps Token Words"
#: Forms that a planted fault of a rule needs: without more of them it takes
#: hundreds of draws until one shows.
_OFTEN = {
    "Couples": "softmax",
    "LiesTogether": "shuffled halves softmax_second doubled_concat delayed "
    "places_before rows_of_few rows_of_few",
    "KeepsTogether": "queued",
    "TurnsTogether": "until_small sum_of_counts largest_count nested_until",
    "ChoosesTogether": "mean any largest first_row",
}
_COUPLED = [
    (name, form)
    for name in layers.TOGETHER
    if name != "IdsTogether"
    for form in layers.FORMS[name] + 4 * _OFTEN.get(name, "").split()
]


class Draw:
    """A model as far as it is drawn: layers and the shape behind them.

    A shape leaves the samples out: (d,), (positions, d), (rows, columns, d)
    or (depth, rows, columns, d).

    Args:
        rng: a `numpy.random.Generator`.
        smooth: whether ops with kinks are left out.
    """

    def __init__(self, rng, smooth=False):
        self.rng, self.smooth = rng, smooth
        self.blocks, self.shape, self.dtype = [], None, None

    def start(self, shape, data, dtype=None):
        """Say what the inputs are: their shape, and source of their values."""
        self.shape, self.data, self.dtype = shape, data, dtype
        kind = f", dtype={dtype!r}" if dtype else ""
        self.inputs = f"keras.Input({shape}{kind})"

    def one(self, options):
        """One of the options, all equally likely."""
        return options[int(self.rng.integers(len(options)))]

    def chance(self, p):
        """True with probability p."""
        return bool(self.rng.random() < p)

    def filled(self, template):
        """The template with all its fields drawn."""
        return re.sub(r"{(\w+)}", lambda m: str(self._field(m[1])), template)

    def _field(self, name):
        if name in layers.FORMS:
            wide = layers.BY_NAME[name].WIDE.split() if self.smooth else []
            forms = [f for f in layers.FORMS[name] if f not in wide]
            return f"{name}({self.one(forms)!r})"
        if name == "a":
            return repr(self.one(_SMOOTH + _KINKED * (not self.smooth)))
        known = {"d": self.shape[-1], "rank": len(self.shape) - 1}
        return known[name] if name in known else self.one(_OPTIONS[name])

    def add(self, expression):
        """Put a layer behind the others."""
        self.shape = shape_of(expression, self.shape, self.dtype)
        self.dtype = None
        self.blocks.append(expression)

    def block(self, kind):
        """Add a layer of a kind."""
        rank = len(self.shape)
        fitting = [
            template
            for ranks, templates in _TEMPLATES[kind].items()
            if rank in ranks
            for template in templates
        ]
        largest = max(LARGEST, *self.shape)
        while True:
            made = self.filled(self.one(fitting))
            # Keras cannot add up losses of half precision.
            if self.smooth and re.search("AddsLoss|ctivity|regularized", made):
                continue
            try:
                shape = shape_of(made, self.shape)
            except ValueError:
                # Windows, or groups of features, do not fit.
                continue
            if all(0 < size <= largest for size in shape):
                break
        self.add(made)

    def smaller(self):
        """Take axes between samples and features away."""
        *sizes, d = self.shape
        options = 2 * [f"L.GlobalAveragePooling{len(sizes)}D()(h)"]
        rows = math.prod(sizes)
        if rows * d <= LARGEST:
            options.append("L.Flatten()(h)")
        if len(sizes) == 1:
            options.append("h[:, 0]")
        if len(sizes) == 2 and rows <= LARGEST:
            options.append(f"L.Reshape(({rows}, {d}))(h)")
        self.add(self.one(options))

    def coupled(self):
        """Add a layer in which samples meet."""
        if self.chance(0.07):
            made = "L.BatchNormalization()(h)"
            if len(self.shape) == 1 and self.chance(0.5):
                penalty = "keras.regularizers.OrthogonalRegularizer(0.5)"
                made = f"L.Dense(3, activity_regularizer={penalty})(h)"
            self.add(made)
            return
        # The others keep the shape.
        name, form = self.one(_COUPLED)
        made = f"{name}({form!r})(h)"
        is_forward = name != "DerivesTogether"
        is_forward &= not re.match("gradient|loss", form)
        if is_forward and self.chance(0.6):
            # The way back would show it as well.
            made = f"L.Add()([h, Stops()({made})])"
        self.blocks.append(made)


@functools.cache
def shape_of(expression, shape, dtype=None):
    """The shape of an expression's value for h of a shape."""
    own = re.fullmatch(r"(\w+)\('\w+'\)\(h\)", expression)
    if own and own[1] not in _CHANGING.split():
        return shape
    space = {"L": keras.layers, "keras": keras, **layers.BY_NAME}
    space["h"] = keras.Input(shape, dtype=dtype)
    return eval(expression, space).shape[1:]
