"""Passes over data that compute figures of its samples, batch by batch."""

import weakref
from typing import Any, Literal

import keras
import tensorflow as tf

from keras_pergrad.common.arguments import require_one_of
from keras_pergrad.common.batches import TEXTS_AS_TARGETS, ranks
from keras_pergrad.common.data_batches import batches_of
from keras_pergrad.common.text import first_few
from keras_pergrad.factors import wide
from keras_pergrad.functions.batch_loss import is_mean_over_samples
from keras_pergrad.keras_internals.losses.losses import total_loss
from keras_pergrad.keras_internals.models.parts import (
    build_symbolically,
    inner_layers,
    require_gradients,
    require_inputs,
    require_none_overwritten,
    require_targets,
    require_variables,
)
from keras_pergrad.keras_internals.replicas.advice import advising
from keras_pergrad.keras_internals.replicas.replicas import out_of_scope
from keras_pergrad.keras_internals.state.model import (
    preserve_random_state,
    run_and_restore,
)
from keras_pergrad.keras_internals.tensorflow.settings import traced_functions
from keras_pergrad.modes.inspection import (
    NOT_IN_TRAINING,
    mixes_in_training_only,
    require_any_batch_size,
    require_compiled,
)
from keras_pergrad.modes.one_step import WholeBatch, plus
from keras_pergrad.modes.per_sample import Samples
from keras_pergrad.uses import TracedStep, function_cache

#: Samples that go through a model at a time, where no size is given.
PASS_SIZE = 256
METHODS = ("vectorized", "per_sample")
Method = Literal["vectorized", "per_sample"]
_PER_SAMPLE_IN_STEP = (
    "For a train_step of your own derive the model from "
    "keras_pergrad.PerGradModel, whose compute_gradients() gives "
    "per-sample gradients inside the step; or ask one of its parts."
)


def run_passes(quantity, model, data, *extra_tensors, method, training):
    """Yield the gradients, norms or statistics of each batch.

    `quantity`: one of these names, or an object as `DOT_PRODUCTS`, which makes
    something else of them with `extra_tensors`.
    """
    require_outside_functions()
    require_compiled(model)
    require_one_of("method", method, METHODS)
    *data, batch_size, verbose = data
    batches = batches_of(*data, batch_size=batch_size)
    # ‖ḡ‖² over several batches needs the sum of the gradients themselves.
    if quantity == "statistics" and batches.count != 1:
        quantity = "sums"
    for batch in with_progress(batches, verbose):
        require_targets(model, batch)
        figures = run_on_batch(
            model,
            batch,
            (quantity, method, training, ranks(batch)),
            # Weak: a cached function must not keep its model alive.
            trace=lambda quantity=quantity: _trace(
                quantity, method, training, model_reference=weakref.ref(model)
            ),
            training=training,
            extra_tensors=extra_tensors,
        )
        if not extra_tensors:  # Else one of these may be left out.
            require_gradients(model, figures)
        yield figures


def require_outside_functions():
    """Refuse to run while the user's `tf.function` is traced."""
    if tf.inside_function():
        raise ValueError(_INSIDE_FUNCTION)


def pass_data(model, x, y, sample_weight, *, batch_size, verbose):
    """Return the data of `run_passes`; a batch size is chosen for None."""
    if batch_size is None:
        batch_size = _pass_size(model, x, y, sample_weight)
    return x, y, sample_weight, batch_size, verbose


def _pass_size(model, x, y, sample_weight):
    """Return a batch size that changes no result, or None: all at once."""
    arrays = keras.tree.flatten(x)
    if not arrays or not all(len(getattr(p, "shape", ())) for p in arrays):
        return None  # It comes in batches.
    if arrays[0].shape[0] is None or arrays[0].shape[0] <= PASS_SIZE:
        return None
    require_compiled(model)
    batch = next(iter(batches_of(x, y, sample_weight, batch_size=PASS_SIZE)))
    require_targets(model, batch)
    build_for_gradients(model, batch)
    return PASS_SIZE if is_mean_over_samples(model, batch) else None


def with_progress(batches, verbose, name=None):
    """Yield batches, with a progress bar for several, below its name."""
    count = batches.count
    verbose = 0 if count == 1 else verbose
    if verbose and name:
        print(name, flush=True)
    bar = keras.utils.Progbar(count, verbose=verbose, unit_name="batch")
    number = 0
    for number, batch in enumerate(batches, 1):
        yield batch
        bar.update(number, finalize=number == count)
    if count is None:
        bar.update(number, finalize=True)


def run_on_batch(
    model, batch, key, *, trace, training, extra_tensors, build=None
):
    """Run a function, traced once for each key, on a batch."""
    with preserve_random_state(), advising():
        build_for_gradients(model, batch, build or build_symbolically)
        # The trace is kept for as long as the model lives.
        function = function_cache.kept(model, key, trace)
        try:
            with out_of_scope(), traced_functions():
                return run_and_restore(function, *batch, *extra_tensors)
        except tf.errors.UnimplementedError as error:
            if any(t.dtype == tf.string for t in tf.nest.flatten(batch[1])):
                raise ValueError(TEXTS_AS_TARGETS) from error
            raise
        except ValueError as error:
            if training and mixes_in_training_only(model, error):
                raise ValueError(f"{error}{NOT_IN_TRAINING}") from error
            raise


def require_call(model, ways_out=_PER_SAMPLE_IN_STEP):
    """Refuse a model that has only a step, which calls its parts."""
    if type(model).call is keras.Model.call:
        raise ValueError(
            f"Model {model.name!r} has no call(), so that its loss is not "
            "known here. Expected a model with call(). "
            f"{ways_out}"
        )


@advising()
def build_for_gradients(model, batch, build=build_symbolically):
    """Build a model and its loss; refuse it if it has nothing to train."""
    require_inputs(model, batch[0])
    require_call(model)
    if not model.built or not model.trainable_variables:
        needs_numbers = False
        try:
            build(model, batch)
        except ValueError:
            raise
        except Exception:  # of its call: it works with numbers, or says why
            needs_numbers = True
        if needs_numbers:
            model(batch[0])
    require_variables(model)
    build(model, batch)


def make_ready(model, batch):
    """Refuse inputs that do not fit; build a model that is not built yet."""
    require_inputs(model, batch[0])
    if model.built:
        return
    if type(model).call is not keras.Model.call:
        build_for_gradients(model, batch)
        return
    # Keras never calls it built: its own train_step calls its parts.
    layers = inner_layers(model)
    unbuilt = [layer.name for layer in layers if not layer.built]
    if unbuilt or not layers:
        parts = first_few(list(map(repr, unbuilt))) or "no layers"
        raise ValueError(
            f"Model {model.name!r} has no call() that could create its "
            "weights. Expected layers that are built. Received: "
            f"{parts}, which are not. Train it on a batch first, or call each "
            "of them on one."
        )


def _trace(quantity, method, training, *, model_reference):
    compute = (
        _compute_vectorized if method == "vectorized" else _compute_per_sample
    )

    @tf.function(autograph=False, reduce_retracing=True)
    def function(x, y, sample_weight, *extra_tensors):
        model = model_reference()
        require_none_overwritten(model)
        return compute(
            quantity, model, x, y, sample_weight, training, *extra_tensors
        )

    return function


def _compute_vectorized(
    quantity, model, x, y, sample_weight, training, *extra_tensors
):
    traced = TracedStep(model, (x, y, sample_weight), training)
    with traced:
        y_pred = traced.forward(x)
        loss = total_loss(
            model,
            x,
            y,
            y_pred=y_pred,
            sample_weight=sample_weight,
            training=training,
        )
    factors = traced.sample_gradients(loss)
    n = tf.shape(tf.nest.flatten(x)[0])[0]
    # Factors are of contributions; a per-sample gradient is n times as large.
    if quantity == "norms":
        return [
            f and tf.sqrt(s := f.squared_norms()) * tf.cast(n, s.dtype)
            for f in factors
        ]
    if quantity in ("statistics", "sums"):
        return [f and _squared_norms(f, n, quantity == "sums") for f in factors]
    if extra_tensors:
        return quantity.of_factors(factors, n, *extra_tensors)
    return [f and (g := f.materialize()) * tf.cast(n, g.dtype) for f in factors]


def _squared_norms(factor, n, with_mean):
    """Return ‖g_i‖², (n,), ‖ḡ‖² and ḡ or None, of one variable."""
    factor = factor.held()
    squares = factor.squared_norms()
    squares *= tf.square(tf.cast(n, squares.dtype))
    total = factor.weighted_sum(None) if with_mean else None
    mean = None if total is None else tf.convert_to_tensor(total)
    return squares, factor.squared_norm_of_sum(), mean


def _compute_per_sample(
    quantity, model, x, y, sample_weight, training, *extra_tensors
):
    require_any_batch_size(model)
    samples = Samples(model, WholeBatch(model, (x, y, sample_weight)), training)
    has_gradient = [False] * len(samples.variables)

    def sample_values(i):
        contributions = samples.contributions(i)
        # Known while tracing, and the same for every sample.
        has_gradient[:] = [gradient is not None for gradient in contributions]
        results = [
            tf.zeros(v.shape, v.value.dtype) if g is None else g
            for v, g in zip(samples.variables, contributions)
        ]
        if quantity == "norms":
            results = [tf.norm(tf.reshape(wide(g), [-1])) for g in results]
        if extra_tensors:
            results = quantity.of_one(results, *extra_tensors)
        return [p * tf.cast(samples.n, p.dtype) for p in results]

    values = [v.value for v in samples.variables]
    if quantity in ("statistics", "sums"):
        results = _loop_statistics(sample_values, samples.n, values)
    else:
        specs = [tf.TensorSpec(v.shape, v.dtype) for v in values]
        if quantity == "norms" or extra_tensors:
            specs = [tf.TensorSpec([], wide(v).dtype) for v in values]
        results = tf.map_fn(
            sample_values, tf.range(samples.n), fn_output_signature=specs
        )
    return [r if is_used else None for r, is_used in zip(results, has_gradient)]


def _loop_statistics(sample_gradients, n, values):
    """Return ‖g_i‖², (n,), ‖ḡ‖² and ḡ by variable, sample by sample."""
    dtypes = [wide(v).dtype for v in values]
    squares = tuple(tf.TensorArray(dtype, n) for dtype in dtypes)
    sums = tuple(tf.zeros(v.shape, dtype) for v, dtype in zip(values, dtypes))

    def add(i, squares, sums):
        gradients = [wide(g) for g in sample_gradients(i)]
        squares = tuple(
            array.write(i, tf.reduce_sum(tf.square(g)))
            for array, g in zip(squares, gradients)
        )
        return i + 1, squares, tuple(s + g for s, g in zip(sums, gradients))

    _, squares, sums = tf.while_loop(
        lambda i, *_: i < n, add, (0, squares, sums), parallel_iterations=1
    )
    means = [total / tf.cast(n, total.dtype) for total in sums]
    return [
        (array.stack(), tf.reduce_sum(tf.square(mean)), mean)
        for array, mean in zip(squares, means)
    ]


def over_batches(batches):
    """Return (‖g_i‖², ‖ḡ‖²) by variable, over the samples of all batches."""
    squared_norms, totals, first_results = [], [], None
    for batch_results in batches:
        first_results = first_results or batch_results
        squared_norms.append([result and result[0] for result in batch_results])
        batch_sums = [
            None
            if result is None or result[2] is None
            else wide(result[2])
            * tf.cast(tf.size(result[0]), wide(result[2]).dtype)
            for result in batch_results
        ]
        # ‖ḡ_batch‖² do not add up to ‖ḡ‖², so sums of gradients are carried on.
        totals = plus(totals, batch_sums) if totals else batch_sums
    pairs = []
    for batch_squares, total, result in zip(
        zip(*squared_norms), totals, first_results or ()
    ):
        if result is None:
            pairs.append(None)
            continue
        squares, squared_mean = tf.concat(batch_squares, 0), result[1]
        if len(squared_norms) > 1:
            mean = total / tf.cast(tf.size(squares), total.dtype)
            squared_mean = tf.reduce_sum(tf.square(mean))
        pairs.append((squares, squared_mean))
    return pairs


def concatenate_results(results) -> Any:
    """Concatenate the results of batches along the samples, by variable."""
    results = list(results)
    if len(results) == 1:
        return results[0]
    return [
        None if parts[0] is None else tf.concat(parts, 0)
        for parts in zip(*results)
    ]


_INSIDE_FUNCTION = (
    "This function is called while a tf.function is traced. Expected a call "
    "outside of it, with arrays: it traces functions of its own. Inside your "
    "own step take the gradients by "
    "PerGradModel.compute_gradients(loss_fn, x, y), compiled with "
    "gradient_mode=keras_pergrad.Vectorized(aggregation=...); or leave out "
    "@tf.function."
)
