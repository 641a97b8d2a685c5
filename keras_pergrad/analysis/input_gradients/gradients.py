"""`input_gradients`: from arrays of any size to arrays of any size."""

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.analysis.input_gradients.chunk import (
    OVER_SAMPLES,
    REDUCTIONS,
    output_of,
    traced,
)
from keras_pergrad.analysis.input_gradients.results import Rows, Total
from keras_pergrad.analysis.input_gradients.sizes import Sizes, pieces
from keras_pergrad.analysis.input_gradients.sources import (
    require_batch,
    source,
)
from keras_pergrad.analysis.input_gradients.targets import Targets
from keras_pergrad.common.arguments import positive_integer
from keras_pergrad.keras_internals.model_state import (
    random_state_kept,
    run_and_restore,
    unchanged,
)


def input_gradients(
    model, x, outputs=None, batch_size=256, reduce=None, out=None, verbose=1
):
    """Compute gradients of a model's outputs with respect to its inputs.

    They are those of `tf.GradientTape.batch_jacobian`, but inputs and results
    need not fit in memory. One function, traced once per call, computes them
    chunk by chunk, while the next chunk is read. The model is called as in
    `predict` (`training=False`), and each sample is treated separately.

    Args:
        model: a `keras.Model` with one output, compiled or not. Outputs of
            several axes are numbered consecutively, the last axis fastest.
        x: inputs as for `predict`: an array (n, ...), memory-mapped or not, a
            structure of arrays, or a `tf.data.Dataset` of batches
            (of x, (x, y) or (x, y, sample_weight)). In place of an integer
            input, such as token ids, the output of the one Embedding that
            reads it is used. If a floating input holds ids and is also read
            otherwise, the ids count as constants.
        outputs: which outputs: None for all (the full Jacobian), an index, a
            list of k indices, or an integer array (n,) with one index per
            sample, such as its class.
        batch_size: how many samples a chunk has at most; it has fewer if its
            gradients would take too much of the free memory.
        reduce: what to keep: None for everything; `"norm"`, the Euclidean norm
            over the axes of each input; or `"sum"`, `"mean"`, `"mean_abs"` or
            `"mean_square"` over the samples.
        out: arrays to write to, in the structure of x, memory-mapped or not,
            of the result's shape and dtype; not with a reduction over the
            samples.
        verbose: whether to show a progress bar.

    Returns:
        In the structure of x, for each input of shape (n, *input) an array:

        | outputs | shape |
        |---|---|
        | None | (n, *output, *input) |
        | k indices | (n, k, *input) |
        | an index, or one a sample | (n, *input) |

        of Keras's `floatx`. `"norm"` removes the axes `*input`; a reduction
        over the samples removes n and gives float64. The result is `out`, if
        given. An input that has no influence on an output has gradient 0.

    Raises:
        TypeError, ValueError: an argument is of the wrong kind or out of
            range; an integer input is not read by exactly one Embedding; a
            floating one is read as ids; x and `out` differ in length; or the
            result would not fit in the free memory. An error in the middle
            says how many rows of `out` are written; they stay.

    Example:

    >>> import keras, numpy as np
    >>> import keras_pergrad as kpg
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    >>> x = np.ones((5, 4))
    >>> kpg.input_gradients(model, x, verbose=0).shape
    (5, 3, 4)
    >>> kpg.input_gradients(model, x, outputs=1, verbose=0).shape
    (5, 4)
    """
    _check(model, reduce, out)
    chunks = source(x, positive_integer("batch_size", batch_size))
    targets = None
    over_samples = reduce in OVER_SAMPLES
    result = (
        Total(reduce != "sum") if over_samples else Rows(out, chunks.samples)
    )
    bar = keras.utils.Progbar(chunks.chunks, verbose=verbose, unit_name="chunk")
    try:
        for number, chunk in enumerate(chunks):
            chunk = tf.nest.map_structure(tf.convert_to_tensor, chunk)
            if targets is None:
                require_batch(model, chunk)
                with unchanged(model):
                    shape = output_of(model, _first(chunk)).shape
                targets = Targets(outputs, shape, chunks.samples)
                sizes = Sizes(model, chunk, targets, reduce, out is None)
                sizes.check_result(chunks.samples or 0)
                rows = sizes.rows()
                compute = traced(model, targets, reduce)
            for piece in pieces(chunk, rows):
                count = int(tf.nest.flatten(piece)[0].shape[0])
                sizes.check_result(result.rows + count)
                own = targets.of_chunk(result.rows, count)
                with random_state_kept():
                    found = run_and_restore(compute, piece, tf.constant(own))
                result.write(found, count)
            bar.update(number + 1, finalize=number + 1 == chunks.chunks)
        if targets is not None:
            targets.check_end(result.rows)
    except BaseException as error:
        if out is not None:
            _flush(out)
            error.add_note(
                f"input_gradients: the first {result.rows} rows of `out` are "
                "written."
            )
        raise
    if out is not None:
        _flush(out)
    return result.result()


def _first(chunk):
    return tf.nest.map_structure(lambda t: t[:1], chunk)


def _flush(out):
    for array in tf.nest.flatten(out):
        if isinstance(array, np.memmap):
            array.flush()


def _check(model, reduce, out):
    if not isinstance(model, keras.Model):
        raise TypeError(
            "`model` must be a keras.Model. Received: "
            f"{model!r} of type {type(model).__name__}"
        )
    if reduce is not None and reduce not in REDUCTIONS:
        raise ValueError(
            f"`reduce` must be None or one of {REDUCTIONS}. Received: "
            f"reduce={reduce!r}"
        )
    if out is not None and reduce in OVER_SAMPLES:
        raise ValueError(
            f"`out` is for results with a row for each sample; "
            f"reduce={reduce!r} leaves none. Leave out `out`: the result is "
            "returned."
        )
