"""`input_gradients`: from arrays of any size to arrays of any size."""

import contextlib
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.common.arguments import (
    named_arguments,
    positive_integer,
    require_one_of,
)
from keras_pergrad.common.data_batches import batches_of
from keras_pergrad.functions.data_passes import require_outside_functions
from keras_pergrad.functions.given_loss import given_loss
from keras_pergrad.inputs.arrays import (
    Chunks,
    GatheredRows,
    Total,
    require_batch,
)
from keras_pergrad.inputs.chunk import (
    OVER_SAMPLES,
    REDUCTIONS,
    call,
    loss_of_chunk,
    loss_of_one,
    traced_gradients,
)
from keras_pergrad.inputs.targets import Selection, outputs_text
from keras_pergrad.keras_internals.models.parts import (
    build_symbolically,
    require_inputs,
    require_targets,
)
from keras_pergrad.keras_internals.replicas.advice import advising
from keras_pergrad.keras_internals.replicas.replicas import out_of_scope
from keras_pergrad.keras_internals.state.model import (
    preserve_layer_losses,
    preserve_random_state,
    run_and_restore,
    unchanged,
)
from keras_pergrad.modes.inspection import require_any_batch_size, require_model


@advising()
@named_arguments
def input_gradients(
    model: keras.Model,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    outputs: Any = None,
    loss: Any = None,
    order: Literal[1, 2] = 1,
    reduce: Literal["norm", "sum", "mean", "mean_abs", "mean_square"]
    | None = None,
    out: Any = None,
    batch_size: int = 256,
    verbose: int | bool = 1,
) -> Any:
    """Compute gradients of outputs, or of the loss, with respect to inputs.

    For saliency maps, Jacobians, adversarial examples, second derivatives.
    The results equal those of `tf.GradientTape.batch_jacobian`, but inputs and
    results need not fit in memory. One function, traced once per call, computes
    them chunk by chunk, while the next chunk is read. The model is called as in
    `predict` (`training=False`), and each sample is treated separately.

    Args:
        model: a `keras.Model`, compiled or not (for the loss: compiled, or with
            `loss`).
            Outputs of several axes are numbered consecutively, the last axis
            fastest.
        x: inputs as for `predict`: an array (n, ...), memory-mapped or not, a
            structure of arrays, or a `tf.data.Dataset` of batches
            (of x, (x, y) or (x, y, sample_weight)). In place of an integer
            input, such as token ids, the output of the one Embedding that
            reads it is used. If a floating input holds ids and is also read
            otherwise, the ids count as constants.
        y: the targets, as for `fit`; then `outputs` is `"loss"`. A dataset
            holds its own.
        sample_weight: weights of the samples, (n,), with y only.
        outputs: which outputs: None for all (the full Jacobian), an index, a
            list of k indices, or an integer array (n,) with one index per
            sample, such as its class. Of a model with several outputs: None
            for all of them, or a dict from output (its key or name, else its
            position) to one of these. `"loss"`: the compiled loss of each
            sample, as for a batch of it alone, with its sample weight.
        loss: None: the compiled loss; or one in its place, with y, as for
            `per_sample_gradients`.
        order: 1; or 2 for the second derivative of each output by each entry
            of x, the diagonal of the Hessian. Its sum over the axes of an
            input is the Laplacian. It takes one backward pass for each entry.
        reduce: what to keep: None for everything; `"norm"`, the Euclidean norm
            over the axes of each input; or `"sum"`, `"mean"`, `"mean_abs"` or
            `"mean_square"` over the samples.
        out: arrays to write to, in the structure of the result, memory-mapped
            or not, of its shape and dtype; not with a reduction over the
            samples.
        batch_size: how many samples a chunk has; one if the loss of several
            does not show that of each (masks, weights in the mean,
            `add_loss`, a custom `compute_loss`). While a chunk is computed,
            it takes about four times the memory of its gradients.
        verbose: whether to show a progress bar.

    Returns:
        In the structure of x, for each input of shape (n, *input) an array:

        | outputs | shape |
        |---|---|
        | None | (n, *output, *input) |
        | k indices | (n, k, *input) |
        | an index, one a sample, or the loss | (n, *input) |

        of Keras's `floatx`. `"norm"` removes the axes `*input`; a reduction
        over the samples removes n and gives float64. Of a model with several
        outputs: such a result for each, in the structure of the outputs or in
        a dict with the keys of `outputs`. The result is `out`, if given. An
        input that has no influence on an output has gradient 0.

    Raises:
        TypeError, ValueError: an argument is of the wrong kind or out of
            range; an integer input is not read by exactly one Embedding; a
            floating one is read as ids; x, y and `out` differ in length; the
            loss is asked for without targets or `compile`; or the model or
            its loss mixes samples. An error in the middle says how many rows
            of `out` are written; they stay.

    Example:

    >>> import keras, numpy as np
    >>> import keras_pergrad as kpg
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    >>> x, labels = np.ones((5, 4)), np.array([0, 2, 1, 1, 0])
    >>> kpg.input_gradients(model, x, verbose=0).shape
    (5, 3, 4)
    >>> kpg.input_gradients(model, x, outputs=1, verbose=0).shape
    (5, 4)

    Adversarial examples, one step of the fast gradient sign method:

    >>> loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    >>> gradients = kpg.input_gradients(
    ...     model, x, y=labels, loss=loss, verbose=0
    ... )
    >>> adversarial = x + 0.1 * np.sign(gradients)
    """
    _check_arguments(model, reduce, out, order=order)
    outputs = _chosen_outputs(outputs, y, sample_weight, loss=loss)
    size = positive_integer("batch_size", batch_size)
    chunks = Chunks(x, y, sample_weight, batch_size=size)
    over_samples = reduce in OVER_SAMPLES
    result = (
        Total(reduce != "sum")
        if over_samples
        else GatheredRows(out, chunks.samples)
    )
    bar = keras.utils.Progbar(chunks.count, verbose=verbose, unit_name="chunk")
    compute = None
    of_loss = _is_loss(outputs)
    with given_loss(model, loss) if of_loss else contextlib.nullcontext():
        try:
            for number, chunk in enumerate(chunks):
                # The outputs' shapes are known from the first chunk only.
                if compute is None:
                    compute = _Computation(
                        model,
                        chunk,
                        outputs=outputs,
                        reduce=reduce,
                        order=order,
                        samples=chunks.samples,
                    )
                compute(chunk, result)
                bar.update(number + 1, finalize=number + 1 == chunks.count)
            if compute is None:
                raise ValueError(
                    "x must hold at least one sample. Received: none"
                )
            for target in compute.selection.targets:
                target.check_end(result.rows)
        except BaseException as error:
            if out is not None and result.rows:
                error.add_note(
                    f"input_gradients: the first {result.rows} rows of `out` "
                    "are written."
                )
            raise
        finally:
            for array in tf.nest.flatten(out):
                if isinstance(array, np.memmap):
                    array.flush()
    return result.result()


class _Computation:
    """What is known once the first chunk is read, and the traced function."""

    def __init__(self, model, chunk, *, outputs, reduce, order, samples):
        self._model = model
        self._is_of_loss = _is_loss(outputs)
        loss, first_sample = None, _first_sample(chunk)
        require_any_batch_size(model, "input_gradients()")
        require_batch(model, chunk[0])
        require_inputs(model, chunk[0])
        if self._is_of_loss:
            require_targets(model, chunk)
            build_symbolically(model, chunk)
            # One number a sample, as of a model with such an output.
            outputs, predicted = None, tf.zeros([1])
            with unchanged(model):
                loss = loss_of_chunk(model, first_sample)
        else:
            with unchanged(model):
                predicted = call(model, first_sample[0])
        self.selection = Selection(model, outputs, predicted, samples=samples)
        self._is_one_by_one = loss is loss_of_one
        self._function = traced_gradients(
            model, self.selection, reduce, order=order, loss=loss
        )

    def __call__(self, chunk, result):
        """Add the gradients of a chunk to the result."""
        if not self._is_of_loss:
            chunk = chunk[0], None, None
        pieces = [chunk]
        if self._is_one_by_one:
            pieces = batches_of(*chunk, batch_size=1)
        for piece in pieces:
            count = len(tf.nest.flatten(piece[0])[0])
            sample_indices = [
                tf.constant(target.chunk_indices(result.rows, count))
                for target in self.selection.targets
            ]
            with (
                out_of_scope(),
                preserve_random_state(),
                preserve_layer_losses(self._model),
            ):
                gradients = run_and_restore(
                    self._function, piece, sample_indices
                )
            result.write(gradients, count)


def _first_sample(chunk):
    """Return the first sample of a chunk, as a batch."""
    return tf.nest.map_structure(lambda t: None if t is None else t[:1], chunk)


def _chosen_outputs(outputs, y, sample_weight, *, loss):
    """Return `outputs`, "loss" if targets or a loss are given."""
    if y is None and sample_weight is None and loss is None:
        return outputs
    if outputs is not None and not _is_loss(outputs):
        raise ValueError(
            "`y`, `sample_weight` and `loss` are for the gradient of the loss. "
            "Expected outputs=None or 'loss' with them. Received: "
            f"outputs={outputs_text(outputs)}. (For the output of each "
            "sample's class, pass the classes as `outputs` and leave out `y`.)"
        )
    return "loss"


def _is_loss(outputs):
    return isinstance(outputs, str) and outputs == "loss"


def _check_arguments(model, reduce, out, *, order):
    require_outside_functions()
    require_model(model)
    require_one_of("reduce", reduce, (None, *REDUCTIONS))
    if out is not None and reduce in OVER_SAMPLES:
        raise ValueError(
            f"`out` is for results with a row for each sample; "
            f"reduce={reduce!r} leaves none. Leave out `out`: the result is "
            "returned."
        )
    advice = (
        " For mixed and higher derivatives nest tf.GradientTape, as the guide "
        "on physics-informed nets shows."
    )
    require_one_of("order", order, (1, 2), advice=advice)
