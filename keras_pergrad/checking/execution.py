"""One way to compute the gradient: mode, device, and eager, graph or XLA."""

import contextlib
import functools
import time

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.common.machine import short_name
from keras_pergrad.keras_internals.graphs import draws
from keras_pergrad.keras_internals.graphs.runs import (
    GraphCopy,
    NotCopyable,
    trace_step,
)
from keras_pergrad.keras_internals.models.parts import (
    call_model,
    patched_attribute,
)
from keras_pergrad.keras_internals.state.saved import AggregationState
from keras_pergrad.keras_internals.tensorflow import onednn
from keras_pergrad.modes.one_step import loss_scale

SETTINGS = ("eager", "graph", "xla")
NO_BATCH_GRADIENT = (
    "it calls the optimizer itself: there is no gradient of the batch to "
    "compare"
)


class Refused(ValueError):
    """A way that gives no gradient to compare; the message says why."""


def variables_device(model):
    """Return the device on which the variables live."""
    return short_name(model.trainable_weights[0].value.device)


class TracedMode:
    """A mode's gradients of one batch, traced."""

    def __init__(self, model, mode, data):
        self.model, self.mode, self.data = model, mode, data
        self._has_gradient = []
        self._scaled = False
        # The mode's own: the model may be compiled with another, or be plain.
        aggregation = mode.aggregation
        self._state = state = aggregation and aggregation.make_state()
        self._state_values = []
        if isinstance(state, AggregationState):
            kept = [getattr(state, name) for name in state.kept]
            self._state_values = [(v, np.asarray(v)) for v in kept]
        self.traced = trace_step(self._compute, data)

    @property
    def graph(self):
        """The graph of the step, not optimised."""
        return self.traced[0].graph

    def run(self, device, setting, state, *, repeats):
        """Return each repeat's gradients, and their median milliseconds."""
        runs, times = [], []
        self._restart()
        runner = _make_runner(
            step=self._compute,
            data=self.data,
            traced=self.traced,
            device=device,
            setting=setting,
            state=state,
        )
        with runner as (make_ready, run_once):
            # The first run traces and warms up, and does not count.
            for _ in range(repeats + 1):
                make_ready()
                self._restart()
                start = time.perf_counter()
                arrays = run_once()
                times.append(time.perf_counter() - start)
                runs.append(self._by_variable(arrays))
        return runs[1:], sorted(times[1:])[repeats // 2] * 1e3

    def _restart(self):
        """Reset what the aggregation keeps between steps."""
        for variable, value in self._state_values:
            variable.assign(value)

    def _compute(self, data):
        data = tf.nest.map_structure(tf.convert_to_tensor, data)
        batch = keras.utils.unpack_x_y_sample_weight(data)
        with patched_attribute(self.model, "aggregation_state", self._state):
            gradients = self.mode.step(self.model, *batch).gradients
        if gradients is None:
            raise Refused(NO_BATCH_GRADIENT)
        self._has_gradient = [g is not None for g in gradients]
        dense_gradients = [
            tf.convert_to_tensor(g) for g in gradients if g is not None
        ]
        scale = loss_scale(self.model.optimizer)
        self._scaled = scale is not None
        if scale is None:
            return dense_gradients
        return [g / tf.cast(scale, g.dtype) for g in dense_gradients]

    def _by_variable(self, arrays):
        arrays = [np.asarray(array, "float64") for array in arrays]
        if self._scaled and not all(np.isfinite(a).all() for a in arrays):
            raise Refused(
                "the loss scale makes the gradient overflow: the optimizer "
                "would leave this step out and lower the scale"
            )
        gradients = iter(arrays)
        return [
            next(gradients) if is_used else None
            for is_used in self._has_gradient
        ]


def record_draws(model, x):
    """Return what random layers draw for a batch, in order; seeds advance."""
    recorded = []

    def forward(batch):
        recorded.clear()
        with draws.recording(recorded.append):
            return call_model(model, batch)

    concrete, _ = trace_step(forward, x)
    if not recorded:
        return []
    defect = onednn.defect(concrete.graph)
    if defect:
        raise ValueError(f"The model cannot be checked here: {defect}.")
    with tf.device("/device:CPU:0"):
        forward(tf.nest.map_structure(tf.constant, x))
    n = len(tf.nest.flatten(x)[0])
    for draw in recorded:
        shape = draw.result.shape
        if draw.name == "shuffle" or not shape.rank or shape[0] not in (1, n):
            raise ValueError(
                f"Expected random draws of a row for each sample. Received: "
                f"keras.random.{draw.name} of shape {tuple(shape)} in "
                f"{model.name!r}, of which a sample alone cannot be given "
                f"its own. Draw numbers of shape (batch, ...)."
            )
    return [np.asarray(draw.rows()) for draw in recorded]


def draws_on(model, x, device, *, setting, state):
    """Return what random layers draw there, like `record_draws`."""
    recorded = []

    def draw(batch):
        recorded.clear()
        with draws.recording(recorded.append):
            call_model(model, batch)
        graph = draws.current_graph()
        if any(d.graph is not graph for d in recorded):
            raise Refused("numbers are drawn in a loop, out of sight")
        return [d.rows() for d in recorded]

    traced = trace_step(draw, x) if setting == "graph" else None
    runner = _make_runner(
        draw, x, traced, device=device, setting=setting, state=state
    )
    with runner as (make_ready, run_once):
        make_ready()
        return run_once()


@contextlib.contextmanager
def _make_runner(step, data, traced, *, device, setting, state):
    """Yield two functions: one prepares a run, the other runs once."""
    place = f"/device:{device}"
    with contextlib.ExitStack() as stack:
        stack.callback(state.restore)
        copied = None
        if setting == "graph":
            concrete, values = traced
            # A lookup table stays with the variables: it cannot be copied.
            with contextlib.suppress(NotCopyable):
                copied = GraphCopy(concrete, device=place, keep=True)
        if copied is not None:
            stack.enter_context(copied)
            yield copied.restore, lambda: copied.run(values)
            return
        if setting != "eager":
            xla = setting == "xla"
            # TensorFlow then counts the traces of this function separately.
            separate = functools.partial(step)
            step = tf.function(separate, autograph=False, jit_compile=xla)

        def run_here():
            with tf.device(place):
                tensors = step(tf.nest.map_structure(tf.constant, data))
                return list(map(np.asarray, tensors))

        yield state.restore, run_here
