"""The record of a `fit` that advice is given on, beside the readings."""

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class Fit:
    """What is known of a `fit`; None or empty: not known.

    Attributes:
        batch_size: samples of an update.
        optimizer: the name of its class, such as "SGD".
        learning_rates: the rate at each reading.
        losses: the probe's loss at each reading.
        first_loss: the probe's loss before the first update.
        half_losses: the same of its first and of its second half.
        input_scale: the largest root mean square of a float input.
        shapes: the shape of each trainable variable, in their order.
        weight_norms: ‖w‖ of each before the first update.
        frozen_norm: that of all weights that are not trained.
        trained_before: the layers that had been trained before this `fit`.
        untrained: those whose weights were still as they were made, and that
            are trained.
        untrained_frozen: those still as they were made, and frozen.
        label_losses: at the end, the probe's loss with its own labels, then
            with those of other samples, drawn anew each time; not asked for
            where the loss has come down.
    """

    batch_size: int | None = None
    optimizer: str = ""
    learning_rates: tuple[float, ...] = ()
    losses: tuple[float, ...] = ()
    first_loss: float | None = None
    half_losses: tuple[float, ...] = ()
    input_scale: float | None = None
    shapes: tuple[tuple[int, ...], ...] = ()
    weight_norms: tuple[float, ...] = ()
    frozen_norm: float = 0.0
    trained_before: tuple[str, ...] = ()
    untrained: tuple[str, ...] = ()
    untrained_frozen: tuple[str, ...] = ()
    label_losses: tuple[float, ...] = ()

    @property
    def learned(self):
        """Whether the probe's loss has come down by half at least."""
        known = [v for v in self.losses[-3:] if math.isfinite(v)]
        if not known or self.first_loss is None:
            return False
        return min(known) < 0.5 * self.first_loss

    @property
    def rate(self):
        """The last learning rate, or None."""
        return self.learning_rates[-1] if self.learning_rates else None
