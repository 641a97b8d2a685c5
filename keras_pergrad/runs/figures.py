"""The figures of a gradient: their names, what they are, and their units."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Figure:
    """A number that a reading may have.

    Attributes:
        name: in the logs, in a `Reading` and in records.
        caption: what it is, in a sentence.
        unit: its unit; empty: it has none.
        instrument: the instrument that reads it; None: every reading has it
            where it is defined.
        needs: what of a measurement the instrument needs in addition to the
            mean gradient: "samples": the norms of the samples' gradients;
            "dots": their products with the mean; "weights": squares by weight;
            "units": squares by unit of a layer; "along": losses and slopes
            along the last update; "begin", "before", "now": the weights when
            training began, before the last update, and now.
        is_drawn: whether charts show it.
    """

    name: str
    caption: str
    unit: str = ""
    instrument: str | None = None
    needs: frozenset[str] = frozenset()
    is_drawn: bool = True


NORM = Figure(
    "gradient_norm", "Norm of the mean gradient.", "loss per unit of weight"
)
VARIANCE = Figure(
    "gradient_variance",
    "Trace of the covariance of the samples' gradients.",
    "the square of the norm's",
)
NOISE_SCALE = Figure(
    "gradient_noise_scale",
    "Variance of the samples' gradients over the squared norm of their mean.",
    "samples",
    instrument="noise_scale",
    needs=frozenset({"samples"}),
)
SNR = Figure("gradient_snr", "Signal over noise of the mean over the batch.")
REPEAT_DEVIATION = Figure(
    "gradient_repeat_deviation",
    "Largest distance of a repeated gradient from the first, over the norm.",
)
EQUAL_VARIABLES = Figure(
    "bitwise_equal_variables",
    "How many variables repeat their gradient bit by bit.",
    "variables",
    is_drawn=False,
)
#: What every reading has, where it is defined.
BASIC = NORM, VARIANCE, NOISE_SCALE, SNR, REPEAT_DEVIATION, EQUAL_VARIABLES
#: What a per-sample mode logs of the training batches by itself.
TRAINING = NORM, VARIANCE, NOISE_SCALE


def _read_by(instrument, caption, *needs, unit="", name=None):
    return Figure(
        name or f"gradient_{instrument}",
        caption,
        unit,
        instrument=instrument,
        needs=frozenset(needs),
    )


#: All figures, by name. An instrument is a row here, and a function of
#: its name in `READ` of `gradient_health.instruments`.
FIGURES = {
    figure.name: figure
    for figure in (
        *BASIC,
        _read_by(
            "norm_test",
            "Standard error of the mean gradient over its norm: above 1 the "
            "batch is mostly noise.",
            "samples",
        ),
        _read_by(
            "inner_product_test",
            "Standard error of the samples' slopes along the mean gradient, "
            "over its squared norm.",
            "dots",
        ),
        _read_by(
            "orthogonality_test",
            "Standard error orthogonal to the mean gradient, over its norm.",
            "samples",
            "dots",
        ),
        _read_by(
            "cabs",
            "The batch size that CABS advises for the learning rate.",
            "samples",
            unit="samples",
        ),
        _read_by(
            "snr_by_weight",
            "Squared mean over variance of a weight's gradient, averaged over "
            "the weights.",
            "weights",
        ),
        _read_by(
            "early_stopping",
            "Evidence that the gradient is only noise: above 0, stop.",
            "weights",
        ),
        _read_by(
            "update_ratio",
            "Norm of the last update over that of the weights.",
            "before",
        ),
        _read_by(
            "distance",
            "Distance of the weights from where `fit` began.",
            "begin",
            unit="weight",
        ),
        _read_by(
            "alpha",
            "Where the last update went on a parabola: 0 is its minimum, "
            "above 1 the loss rises.",
            "samples",
            "along",
            "before",
        ),
        _read_by(
            "dead_units",
            "Share of the units that get no gradient from any sample.",
            "units",
        ),
        _read_by(
            "layers",
            "Layers whose gradient over their weights, by norms, is below "
            "1e-4 of the median layer's.",
            "now",
            unit="layers",
            name="gradient_vanishing_layers",
        ),
        _read_by(
            "layers",
            "Layers whose gradient over their weights, by norms, is above "
            "1,000.",
            "now",
            unit="layers",
            name="gradient_exploding_layers",
        ),
    )
}
#: The names of the instruments, in order.
INSTRUMENTS = tuple(
    dict.fromkeys(f.instrument for f in FIGURES.values() if f.instrument)
)
