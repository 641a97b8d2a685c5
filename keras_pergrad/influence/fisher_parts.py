"""The Fisher information of a model, a part for each variable."""

import dataclasses
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.influence.sides import Kronecker, as_matrices


@dataclasses.dataclass(repr=False, eq=False)
class Fisher:
    """The Fisher information of a model, a part for each variable.

    Attributes:
        kind: "diagonal" or "kfac".
        labels: "sampled" or "data".
        likelihood: what the outputs stand for: "categorical", "bernoulli",
            "gaussian", several of these, or "loss": the compiled loss was
            taken as −log p.
        samples: how many samples it is a mean over.
        paths: the paths of the variables, in their order.
        parts: a part for each variable; None: the loss does not depend on it.
    """

    kind = ""

    parts: list[Any]
    paths: list[str]
    labels: str
    _: dataclasses.KW_ONLY
    likelihood: str
    samples: int

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__}: {len(self.parts)} variables, "
            f"{self.samples} samples, labels {self.labels!r}, likelihood "
            f"{self.likelihood!r}>"
        )

    def __len__(self) -> int:
        return len(self.parts)

    def __getitem__(self, key: str | int) -> Any:
        """Return the part of a variable, by its path or its index."""
        if isinstance(key, str):
            if key not in self.paths:
                raise KeyError(
                    f"Expected one of the paths {self.paths}. Received: {key!r}"
                )
            key = self.paths.index(key)
        return self.parts[key]

    def quadratic(self, differences: Any) -> tf.Tensor:
        """Return Σ dᵀ F d over the variables, a scalar.

        Args:
            differences: d, a tensor of the variable's shape for each variable
                (None: it does not count).

        Raises:
            ValueError: there are not as many as variables.
        """
        differences = list(differences)
        if len(differences) != len(self.parts):
            raise ValueError(
                f"Expected {len(self.parts)} differences, one for each "
                f"variable of {self.paths}. Received: {len(differences)}"
            )
        terms = [
            self._quadratic_form(part, tf.convert_to_tensor(d))
            for part, d in zip(self.parts, differences)
            if part is not None and d is not None
        ]
        dtype = keras.config.floatx()
        return tf.add_n(
            [tf.zeros([], dtype)] + [tf.cast(t, dtype) for t in terms]
        )

    def penalty(self, variables: Any, anchors: Any) -> tf.Tensor:
        """Return ½ Σ F (w − w₀)², the penalty of EWC, a scalar.

        Elastic weight consolidation (Kirkpatrick et al., arXiv 1612.00796)
        adds it, times a strength, to the loss of another task. For "kfac" it
        is ½ Σ (w − w₀)ᵀ F (w − w₀).

        Args:
            variables: w, those of the model, in its order.
            anchors: w₀, their values for the first task: arrays.

        Example:

        >>> import numpy as np
        >>> from keras_pergrad.influence import DiagonalFisher
        >>> parts = [np.array([1.0, 3.0], "float32")]
        >>> result = DiagonalFisher(
        ...     parts, ["w"], "data", likelihood="gaussian", samples=10
        ... )
        >>> float(result.penalty([np.ones(2, "float32")], [np.zeros(2)]))
        2.0
        """
        variables = [tf.convert_to_tensor(w) for w in variables]
        differences = [
            w - tf.cast(a, w.dtype)
            for w, a in zip(variables, anchors, strict=True)
        ]
        return self.quadratic(differences) / 2

    def regularizers(self, anchors: Any, strength: float = 1.0) -> list[Any]:
        """Return a Keras regularizer for each variable: its part of EWC.

        Set them as `variable.regularizer` before `compile`: the penalty is
        then part of the loss, of no sample, and not clipped.

        Args:
            anchors: the values of the variables for the first task: arrays.
            strength: what the penalties are multiplied by.

        Returns:
            A list, with None for a variable that does not count.
        """
        return [
            None
            if part is None
            else _EWCPenalty(self, part, anchor, strength=strength)
            for part, anchor in zip(self.parts, anchors, strict=True)
        ]

    def _quadratic_form(self, part, difference):
        raise NotImplementedError


class _EWCPenalty(keras.regularizers.Regularizer):
    """½ strength · dᵀ F d, with d the distance of a variable to its anchor."""

    def __init__(self, fisher, part, anchor, *, strength):
        self.fisher, self.part = fisher, part
        self.anchor, self.strength = np.array(anchor), strength

    def __call__(self, x):
        value = tf.convert_to_tensor(x)
        difference = value - tf.cast(self.anchor, value.dtype)
        squares = self.fisher._quadratic_form(self.part, difference)
        return self.strength * squares / 2


class DiagonalFisher(Fisher):
    """E[g²] of each entry: parts are arrays of the variables' shapes.

    Example:

    >>> import keras, numpy as np
    >>> import keras_pergrad as kpg
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    >>> model.compile("sgd", "mse")
    >>> result = kpg.influence.fisher(model, np.ones((5, 4)), np.ones((5, 3)))
    >>> result.parts[0].shape, result.samples
    ((4, 3), 5)
    """

    kind = "diagonal"

    def _quadratic_form(self, part, difference):
        return tf.reduce_sum(tf.cast(part, difference.dtype) * difference**2)


class KroneckerFisher(Fisher):
    """Kronecker products: parts are `Kronecker`s of mean arrays.

    The block of a variable is about inputs ⊗ outputs (`count` is 1): with
    them a gradient is seen as a matrix by `axes`. A side with one axis is a
    diagonal. Biases and scales of at most 1,024 entries have their exact
    block, and what is no outer product its exact diagonal, in `outputs`.

    Example:

    >>> import keras, numpy as np
    >>> import keras_pergrad as kpg
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    >>> model.compile("sgd", "mse")
    >>> x = np.ones((5, 4))
    >>> result = kpg.influence.fisher(model, x, kind="kfac", verbose=0)
    >>> kernel = result.parts[0]
    >>> kernel.inputs.shape, kernel.outputs.shape
    ((4, 4), (3, 3))
    """

    kind = "kfac"

    def _quadratic_form(self, part: Kronecker, difference):
        matrix = as_matrices(difference[None], part.axes)[0]
        inputs, outputs = (tf.cast(s, matrix.dtype) for s in part[:2])
        left_product = (
            inputs[:, None] * matrix
            if inputs.shape.rank == 1
            else tf.matmul(inputs, matrix)
        )
        product = (
            left_product * outputs
            if outputs.shape.rank == 1
            else tf.matmul(left_product, outputs)
        )
        return tf.reduce_sum(product * matrix)
