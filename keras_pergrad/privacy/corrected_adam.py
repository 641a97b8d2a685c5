"""Adam whose second moment has no part of the noise."""

from typing import Any

import keras
from keras import ops

from keras_pergrad.common.arguments import named_arguments, positive_number
from keras_pergrad.common.registry import PACKAGE
from keras_pergrad.keras_internals.models.optimizers import (
    adam_moments,
    copy_decay_exclusions,
)

#: The part of the noise over the default floor.
_NOISE_OVER_FLOOR = 10


@keras.saving.register_keras_serializable(PACKAGE)
class CorrectedAdam(keras.optimizers.Adam):
    """What `corrected` makes of `keras.optimizers.Adam`."""

    def __init__(self, *args, gamma=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.gamma = None if gamma is None else positive_number("gamma", gamma)
        self._is_variance_set = False
        self.noise_variance = self.add_variable(shape=(), name="noise_variance")

    def build(self, var_list):
        if self.built:
            return
        super().build(var_list)
        self.noise_parts = [
            self.add_variable(shape=(), dtype=v.dtype, name="noise_part")
            for v in var_list
        ]

    def set_noise_variance(self, variance):
        """Tell the variance of the noise in the gradients of the next apply().

        Args:
            variance: of the noise in each number, a number or a tensor ().
        """
        self._is_variance_set = True
        self.noise_variance.assign(variance)

    def apply(self, grads, trainable_variables=None):
        super().apply(grads, trainable_variables)
        # Of gradients without noise nobody tells.
        self.noise_variance.assign(0)

    def update_step(self, gradient, variable, learning_rate):
        if not self._is_variance_set:
            raise ValueError(_NOT_SET)

        def cast(value) -> Any:
            return ops.cast(value, variable.dtype)

        k, momentum, velocity = adam_moments(self, variable)
        noise: Any = self.noise_parts[k]
        gradient, step = cast(gradient), cast(self.iterations) + 1
        weight_1: Any = 1 - cast(self.beta_1) ** step
        weight_2: Any = 1 - cast(self.beta_2) ** step
        self.assign_add(momentum, (gradient - momentum) * (1 - self.beta_1))
        square = gradient * gradient
        self.assign_add(velocity, (square - velocity) * (1 - self.beta_2))
        variance = cast(self.noise_variance)
        self.assign_add(noise, (variance - noise) * (1 - self.beta_2))
        # All are short of the estimates by weight_2, which alpha has.
        floor = noise / _NOISE_OVER_FLOOR
        if self.gamma is not None:
            floor = cast(self.gamma) * weight_2
        second = ops.maximum(velocity - noise, floor)
        alpha = cast(learning_rate) * cast(ops.sqrt(weight_2)) / weight_1
        step = momentum * alpha / (cast(ops.sqrt(second)) + self.epsilon)
        self.assign_sub(variable, step)

    def get_config(self):
        return {**super().get_config(), "gamma": self.gamma}


@keras.saving.register_keras_serializable(PACKAGE)
class CorrectedAdamW(CorrectedAdam, keras.optimizers.AdamW):
    """What `corrected` makes of `keras.optimizers.AdamW`."""


_CORRECTED: dict[type, type] = {
    keras.optimizers.Adam: CorrectedAdam,
    keras.optimizers.AdamW: CorrectedAdamW,
}


#: Settings of a Keras optimizer under which the noise is another than set.
_REFUSED = (
    "amsgrad",
    "clipnorm",
    "clipvalue",
    "global_clipnorm",
    "gradient_accumulation_steps",
)


@named_arguments
def corrected(
    optimizer: keras.optimizers.Optimizer | str, *, gamma: float | None = None
) -> Any:
    """Return an Adam whose second moment is corrected for the noise.

    ```
    v ← β₂ · v + (1 − β₂) · g²                     as in Adam
    Φ ← β₂ · Φ + (1 − β₂) · variance of the noise in g
    weights ← weights − learning_rate · m̂ / (√max(v̂ − Φ̂, γ) + epsilon)
    ```

    The second moment of noisy gradients is largely that of the noise, which is
    the same for all weights: private Adam takes nearly the steps of SGD with
    momentum. The variance of the noise is known, so that it is subtracted
    (DP-AdamBC: Tang et al., arXiv 2312.14334). Each step of a `PerGradModel`
    passes it, from the clip norm, noise multiplier and batch size of that
    step. With constant noise Φ̂ = (noise_multiplier · clip_norm / batch_size)².
    The variance is public: epsilon stays as it is.

    Steps without noise have the variance 0. Without any noise Φ is 0 and this
    is Adam, if no `gamma` is given.

    Args:
        optimizer: a `keras.optimizers.Adam` or `AdamW`, or its name. It is
            not changed, and must not have been used.
        gamma: the floor γ of the second moment without noise, in units of the
            gradient squared, as in the paper; it must be tuned. Default:
            Φ̂ / 10, which needs no tuning when clip norm or noise change.

    Returns:
        A new optimizer of the same settings, a subclass of the given one. For
        a `LossScaleOptimizer` correct the optimizer inside. A loop, or a mode,
        that adds noise of its own calls its `set_noise_variance(variance)`
        before each `apply`.

    Raises:
        TypeError: it is another optimizer.
        ValueError: `gamma` is not positive; the optimizer was used; it has
            `amsgrad`, clips gradients or accumulates them. Where no step
            has set the variance, the first `apply` raises it.

    Example:

    >>> import keras
    >>> import keras_pergrad as kpg
    >>> inputs = keras.Input((4,))
    >>> model = kpg.PerGradModel(inputs, keras.layers.Dense(1)(inputs))
    >>> model.compile(
    ...     kpg.privacy.corrected(keras.optimizers.Adam(0.01)),
    ...     "mse",
    ...     gradient_mode=kpg.Vectorized(
    ...         kpg.ClippedMean(1.0, noise_multiplier=1.0)
    ...     ),
    ... )
    >>> x, y = keras.ops.ones((8, 4)), keras.ops.ones((8, 1))
    >>> model.fit(x, y, verbose=0).epoch
    [0]
    """
    optimizer = keras.optimizers.get(optimizer)
    cls = _CORRECTED.get(type(optimizer))
    if cls is None:
        raise TypeError(
            "Expected a keras.optimizers.Adam or AdamW; of a "
            "LossScaleOptimizer correct the optimizer inside. Received: "
            f"{type(optimizer).__name__}"
        )
    config = optimizer.get_config()
    given = [name for name in _REFUSED if config.get(name)]
    if given:
        raise ValueError(
            "The variance of the noise is known for gradients as the step "
            f"gives them. Expected {type(optimizer).__name__} without "
            f"{', '.join(_REFUSED)}. Received: "
            + ", ".join(f"{name}={config[name]!r}" for name in given)
        )
    if optimizer.built:
        raise ValueError(
            "Expected an optimizer that has not been used: the part of the "
            "noise in its second moments is not known. Received: one that "
            f"was built for {len(optimizer.variables)} variables"
        )
    result = cls.from_config({**config, "gamma": gamma})
    copy_decay_exclusions(optimizer, result)
    return result


_NOT_SET = (
    "A corrected optimizer needs the variance of the noise, and no step has "
    "set it. Expected a PerGradModel whose gradient_mode adds noise, such as "
    "that of a PrivateTraining, or set_noise_variance(variance) before "
    "apply(). Received: gradients without noise. For these, use the optimizer "
    "that was given to corrected()."
)
