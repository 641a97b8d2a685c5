"""The value of each training sample for the validation loss, in one `fit`."""

import contextlib
import csv
from collections.abc import Sequence
from typing import Any, Literal

import keras
import numpy as np

from keras_pergrad.common import batches
from keras_pergrad.common.arguments import (
    NamedArguments,
    named_arguments,
    path_text,
    positive_integer,
    require_one_of,
    seed_or_none,
)
from keras_pergrad.common.callback_list import PreparesFit, at_end_of_fit
from keras_pergrad.common.optional import import_extra
from keras_pergrad.common.text import as_text
from keras_pergrad.functions.given_batch import as_batch
from keras_pergrad.influence.preconditions import require_validation_batch
from keras_pergrad.influence.value_reader import (
    ValueReader,
    ids_of,
    number_arrays,
    require_value_support,
    value_dtype,
)
from keras_pergrad.keras_internals.replicas.replicas import out_of_scope


class SampleValues(NamedArguments, PreparesFit, keras.callbacks.Callback):
    """Values each training sample by its effect on the validation loss.

    In each step the validation loss falls by about ⟨update, its gradient⟩.
    Each sample of the batch is credited with its part of that, while the
    model trains, without training it again: in-run Data Shapley (Wang et al.,
    "Data Shapley in One Training Run", arXiv 2406.11011). With n samples in
    the batch, the learning rate η, the gradient g of a sample's own loss, the
    gradient v of the validation loss and its Hessian H, the value of sample i
    grows by

    | `order` | by |
    |---|---|
    | 1 | η / n · ⟨g_i, v⟩ |
    | 2 | η / n · ⟨g_i, v − η/2 · H Σ_j g_j / n⟩ |

    A positive value: the sample lowered the validation loss; a negative one:
    it raised it. The unit is that of the loss. The values of a batch add up to
    what one step of SGD lowers the validation loss by, up to higher orders
    in η. (The paper's values have the other sign.)

    With clipping, g_i is the clipped gradient: what the update is made of.
    Noise and weight regularisers are nobody's. With momentum, Adam and so on
    the values are those of a plain SGD step with the same learning rate, from
    the same weights. Compare them with each other, not with the loss.

    For a `PerGradModel` with `gradient_mode="vectorized"`, clipped as well.
    Training stays the same. Arrays given to `fit` need nothing, shuffled or
    not: each row of x is a sample. In a data set or a PyDataset each sample
    brings its number, 0, 1, ..., that it has in `ids`:

    ```python
    data = tf.data.Dataset.from_tensor_slices((x, y)).enumerate()
    data = data.map(
        lambda k, d: (SampleValues.with_numbers(d[0], k), d[1])
    )
    values = SampleValues((x_val, y_val), ids=len(x))
    model.fit(data.shuffle(1000).batch(32), callbacks=[values])
    ```

    The values are saved with the weights of the model (its `value_state`). So
    `BackupAndRestore`, or `load_weights` and `fit(initial_epoch=...)`,
    continues where those weights were: nothing is lost or counted twice. Any
    other `fit` begins with zeros.

    A sample whose gradient is not finite has no value in that step.

    Args:
        validation_data: (x, y) or (x, y, sample_weight), arrays: one batch,
            called in each step with training=False, for the compiled loss
            without weight regularisers.
        ids: one id for each sample, (samples,), of any type, or the number of
            samples; None: the row numbers of the arrays given to `fit`.
        order: 1, or 2: with the Hessian, which costs about two further
            backward passes of the validation data.
        every: after how many steps the validation gradient is computed anew;
            between, the last one stands for it. `order=2` needs 1.
        projection: the number of entries to which gradients are projected at
            random; the values are then unbiased estimates, and take less time.
            Weights for which that saves no time, such as those used at few
            positions, keep their exact part. None: all is exact.
        seed: the seed of the projections.

    Attributes:
        ids: the samples' ids, (samples,).

    Raises:
        ValueError: an argument is out of range, or (in `fit`) the model, its
            mode or its optimizer is not supported, the ids do not fit the
            data, data sets have no numbers, or the validation data are not
            those of the model, or have no finite loss.
        tf.errors.InvalidArgumentError: a number is that of no id; no weight
            has changed by that batch.

    Example:

    >>> import keras, numpy as np
    >>> import keras_pergrad as kpg
    >>> inputs = keras.Input((4,))
    >>> model = kpg.PerGradModel(inputs, keras.layers.Dense(1)(inputs))
    >>> model.compile("sgd", "mse", gradient_mode="vectorized")
    >>> x, y = np.ones((6, 4)), np.ones((6, 1))
    >>> y[2] = -9  # wrong
    >>> values = kpg.callbacks.SampleValues((x[:2], y[:2]))
    >>> history = model.fit(x, y, epochs=2, verbose=0, callbacks=[values])
    >>> values.values.shape, values.counts.tolist()
    ((6,), [2, 2, 2, 2, 2, 2])
    """

    def __init__(
        self,
        validation_data: Any,
        ids: Any = None,
        *,
        order: Literal[1, 2] = 1,
        every: int = 1,
        projection: int | None = None,
        seed: int = 0,
    ):
        super().__init__()
        require_one_of("order", order, (1, 2))
        every = positive_integer("every", every)
        if order == 2 and every > 1:
            raise ValueError(
                "With order=2 the validation gradient is computed in each "
                f"step: expected every=1. Received: every={every}"
            )
        if projection is not None:
            projection = positive_integer("projection", projection)
        self.validation: tuple[Any, ...] = as_batch(
            validation_data, "validation_data"
        )
        self.order: Literal[1, 2] = order
        self.every: int = every
        self.projection: int | None = projection
        self.seed: int = seed_or_none(seed) or 0
        self._ids_argument: Any = ids
        self.ids: Any = None
        self._state = self._reader = self._final_arrays = None
        self._has_row_numbers = False
        self._fit = contextlib.ExitStack()

    @staticmethod
    @named_arguments
    def with_numbers(x: Any, numbers: Any) -> dict[str, Any]:
        """Return the inputs together with the number of each sample.

        A data set gives it in place of x; the model does not see the numbers.

        Args:
            x: inputs of one sample, or of n.
            numbers: an integer, or n of them: the places in `ids`.

        Example:

        >>> import numpy as np
        >>> from keras_pergrad.callbacks import SampleValues
        >>> x = SampleValues.with_numbers(np.ones((2, 3)), np.array([7, 8]))
        """
        return batches.with_numbers(x, numbers)

    @property
    def values(self) -> np.ndarray:
        """The sum of each sample's values, (samples,)."""
        return self._arrays()[0]

    @property
    def counts(self) -> np.ndarray:
        """In how many steps each sample had a value, (samples,)."""
        return self._arrays()[1]

    # Hooks, in the order in which they are called.

    def prepare_fit(
        self, model: keras.Model, arguments: dict[str, Any]
    ) -> None:
        self._end_fit()
        require_value_support(model, self, arguments.get("callbacks"))
        rows = number_arrays(arguments)
        self.ids = ids_of(self._ids_argument, rows)
        self._has_row_numbers = rows is not None
        self._state, self._final_arrays = model.value_state, None
        resumes = (arguments.get("initial_epoch") or 0) > 0
        dtype = value_dtype(model)
        self._state.begin(len(self.ids), dtype, resumes)
        at_end_of_fit(model, None, self._end_fit)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if self._state is None or self._state is not getattr(
            self.model, "value_state", None
        ):
            raise ValueError(
                "SampleValues expected a PerGradModel with "
                "gradient_mode='vectorized', as PerGradModel.from_model(model) "
                f"makes one. Received: a {type(self.model).__name__}."
            )
        with out_of_scope():
            require_validation_batch(self.model, self.validation)
        reader = ValueReader(
            self._state,
            self.validation,
            order=self.order,
            every=self.every,
            projection=self.projection,
            seed=self.seed,
            checks_numbers=not self._has_row_numbers,
        )
        self._fit.enter_context(self.model.read_steps(reader))

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self._end_fit()

    def _end_fit(self):
        fit, self._fit = self._fit, contextlib.ExitStack()
        fit.close()
        state, self._state = self._state, None
        if state is not None:
            state.end()
            self._final_arrays = state.arrays()

    # What is made of the values.

    @named_arguments
    def top(self, k: int = 10, helpful: bool = True) -> list[tuple[Any, float]]:
        """Return [(id, value)] of the k samples of the highest value.

        Args:
            k: how many, at most.
            helpful: False: those of the lowest, the most harmful first.

        Raises:
            ValueError: no `fit` has used it, or `k` is below 1.
        """
        values: Any = self.values
        order = np.argsort(-values if helpful else values, kind="stable")
        order = order[: positive_integer("k", k)]
        ids: Any = self.ids
        return [(ids[i].item(), float(values[i])) for i in order]

    @named_arguments
    def table(self, k: int = 10) -> str:
        """Return the k most harmful and most helpful samples as text."""
        rows = [
            (str(id_), f"{value:.4g}", side)
            for side, helpful in (("harmful", False), ("helpful", True))
            for id_, value in self.top(k, helpful)
        ]
        return "\n".join(as_text(("id", "value", "side"), rows, ("id", "side")))

    @named_arguments
    def to_csv(self, path: Any) -> None:
        """Write a file with the columns id, value and steps."""
        path = path_text("path", path, "a file to write, such as 'values.csv'")
        rows = zip(self.ids.tolist(), self.values, self.counts)
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(_COLUMNS)
            writer.writerows((i, repr(float(v)), int(c)) for i, v, c in rows)

    def to_frame(self) -> Any:
        """Return a pandas `DataFrame` with the columns id, value and steps.

        Raises:
            ImportError: pandas is not installed: `pip install pandas`.
        """
        pandas = import_extra("pandas", "to_frame()", extra=None)
        columns = self.ids, self.values, self.counts
        return pandas.DataFrame(dict(zip(_COLUMNS, columns)))

    def plot(self, ax: Any = None) -> Any:
        """Draw the values in their order.

        Args:
            ax: Matplotlib axes to draw on; by default new ones.

        Returns:
            The axes.

        Raises:
            ImportError: matplotlib is not installed.
        """
        if ax is None:
            pyplot = import_extra("matplotlib.pyplot", "Drawing", "plot")
            _, ax = pyplot.subplots()
        ordered = np.sort(self.values)[::-1]
        rank = np.arange(1, len(ordered) + 1)
        for label, chosen in (("helped", ordered > 0), ("harmed", ordered < 0)):
            heights = np.where(chosen, ordered, 0)
            name = f"{label}: {int(chosen.sum())}"
            ax.fill_between(rank, heights, step="mid", label=name)
        ax.set_xlabel("sample, by value")
        ax.set_ylabel("drop of the validation loss")
        ax.legend()
        return ax

    def _arrays(self):
        arrays = (
            self._final_arrays if self._state is None else self._state.arrays()
        )
        if arrays is None:
            raise ValueError(
                "SampleValues has values once a `fit` has used it: "
                "model.fit(..., callbacks=[values]). Received: none so far."
            )
        return arrays


_COLUMNS: Sequence[str] = ("id", "value", "steps")
