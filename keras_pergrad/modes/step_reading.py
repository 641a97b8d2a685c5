"""Readings of the samples' gradients, in the step that trains on them."""

import dataclasses
from typing import Any

import tensorflow as tf

from keras_pergrad.common.float_types import norm_type
from keras_pergrad.factors import SampleGradients
from keras_pergrad.factors.unchanged import unchanged_factors


@dataclasses.dataclass
class StepSamples:
    """The samples of a batch that is trained on, before its update.

    n samples. They exist in the graph of the step only.

    Example: that of `StepReader`, whose `read` is given one.

    Attributes:
        model: the `PerGradModel`.
        x, y, sample_weight: the batch, as the step gets it.
        y_pred: the model's outputs.
        loss: the loss of the batch, regularisers included, unscaled.
        n: how many samples, a number or a scalar tensor.
        variables: the trainable variables.
        factors: for each variable the `SampleGradients` of the samples'
            contributions, unscaled, not clipped, without regularisers; None:
            the loss does not depend on it. `n` times a contribution is the
            gradient of a sample. A sample that is not finite is not blank.
        sums: those of the contributions, where they are known; see `mean`.
    """

    model: Any
    x: Any
    y: Any
    sample_weight: Any
    y_pred: Any
    loss: Any
    n: Any
    variables: list
    factors: list[SampleGradients | None]
    sums: list | None = None

    @property
    def dtype(self):
        """float64 if a variable is, else float32."""
        return norm_type(self.variables)

    def mean(self):
        """Return the mean gradient, one dense tensor a variable."""
        if self.sums is None:
            self.sums = [f and f.weighted_sum(None) for f in self.factors]
        return [
            tf.zeros(v.shape, v.dtype) if g is None else tf.convert_to_tensor(g)
            for v, g in zip(self.variables, self.sums)
        ]

    def squared_norms(self):
        """Return ‖g_i‖² for each variable, (V, n).

        Call it first: `mean` and `dots` reuse what it holds.
        """
        zeros, squares = tf.zeros([self.n], self.dtype), []
        for factor in self.factors:
            if factor is None:
                squares.append(zeros)
                continue
            norms: Any = factor.squared_norms()
            norms = tf.cast(norms, self.dtype)
            squares.append(tf.reshape(norms, [self.n]))
        return tf.cast(self.n, self.dtype) ** 2 * tf.stack(squares)

    def dots(self, directions):
        """Return ⟨g_i, d⟩ over all variables, (n,).

        `directions` has a tensor of the shape of each variable, or None.
        """
        total = tf.zeros([self.n], self.dtype)
        for factor, direction in zip(self.factors, directions, strict=True):
            if factor is not None and direction is not None:
                total += tf.cast(factor.dot(direction), self.dtype)
        return tf.cast(self.n, self.dtype) * total


class StepReader:
    """Reads the samples' gradients of the steps that train, in their graph.

    Subclass it, and open it with `model.read_steps(reader)` while a model
    trains. Before each call of the train function `is_due` says whether to
    read in it; a call that is not read is the one that runs without a
    reader. In one that is, `read` makes tensors of the `StepSamples`,
    before the update, and `receive` gets their values after it. With
    `steps_per_execution` above 1 a call has several steps: all are read,
    `receive` gets the last one's. What is to be kept of each goes into
    variables of the reader's own, by `assign`, `scatter_nd_add` and so on
    in `read`.

    The gradients and the update are the same as without it. A class that
    does not define `read` raises NotImplementedError in the first step.

    Example, the inner product of each sample's gradient with their mean:

    >>> import keras, numpy as np
    >>> import keras_pergrad as kpg
    >>> class Agreement(kpg.modes.StepReader):
    ...     def read(self, samples):
    ...         return {"dots": samples.dots(samples.mean())}
    ...     def receive(self, values):
    ...         print(values["dots"].shape)
    >>> inputs = keras.Input((4,))
    >>> model = kpg.PerGradModel(inputs, keras.layers.Dense(3)(inputs))
    >>> model.compile("sgd", "mse", gradient_mode="vectorized")
    >>> with model.read_steps(Agreement()):
    ...     history = model.fit(np.ones((5, 4)), np.ones((5, 3)), verbose=0)
    (5,)
    """

    #: Whether each sample must have a number.
    needs_numbers = False
    #: Whether `checks` looks at the numbers.
    checks_numbers = False

    def is_due(self) -> bool:
        """Whether to read in the next call of the train function."""
        return True

    def checks(self, numbers) -> list:
        """Return ops that fail where a batch cannot be read.

        No weight changes before them. XLA drops assertions. `numbers` are
        those of the samples, (n,), where the data have them, else None.
        """
        return []

    def read(self, samples: StepSamples) -> dict[str, Any]:
        """Return tensors, or lists of them, by name; traced into the step."""
        raise NotImplementedError(f"{type(self).__name__} must define read().")

    def collect(self, read, numbers) -> dict[str, Any]:
        """Return what `receive` gets of what `read` returned, in each step.

        It runs after the update. `numbers` are those of the samples, (n,),
        where the data have them, else None.
        """
        return read

    def receive(self, values: dict[str, Any]) -> None:
        """Take what `read` returned, after the update."""


def readings(readers, model, part, y_pred, factors, sums=None):
    """Return what readers make of a whole batch's factors, for each a dict.

    The factors hold no more afterwards than they did before.
    """
    factors, variables = part.of_all(factors), part.of_all(None)
    sums = None if sums is None else part.of_all(sums)
    batch = part.x, part.y, part.sample_weight
    read = []
    with unchanged_factors(factors):
        for reader in readers:
            given = model, *batch, y_pred, part.loss, part.n, variables
            values = reader.read(StepSamples(*given, factors, sums))
            read.append({k: _tuple(v) for k, v in values.items()})
    return tuple(read)


def _tuple(value):
    # Keras returns the logs as an Optional, which can have no list.
    return tuple(value) if isinstance(value, list) else value
