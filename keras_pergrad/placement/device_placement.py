"""A report of where a training step really runs."""

import collections
import warnings
from typing import Any

import keras
import tensorflow as tf

from keras_pergrad.common import machine
from keras_pergrad.common.arguments import NamedArguments
from keras_pergrad.common.batches import without_numbers
from keras_pergrad.common.callback_list import at_end_of_fit, go_before_readers
from keras_pergrad.common.running_fit import running_fit
from keras_pergrad.keras_internals.fit import train_function
from keras_pergrad.keras_internals.tensorflow.devices import placed_graphs
from keras_pergrad.placement import graph, metal, operations
from keras_pergrad.placement.profile import replay
from keras_pergrad.placement.report import PlacementReport

_COUNTS = ("ops_on_accelerator", "ops_on_cpu", "device_copies")


class PlacementWarning(UserWarning):
    """Something on this device is known to fail, or wrong on some versions."""


class DevicePlacement(NamedArguments, keras.callbacks.Callback):
    """Shows which ops run on the accelerator and which on the CPU.

    The figures come from the graphs that TensorFlow hands to each device
    after placing and optimising the step, not from what was requested.
    After the first training step the report is printed and kept. An op or copy
    in a loop or branch is counted once, however often a step runs it;
    `deep=True` counts the runs.

    The logs of each epoch get `ops_on_accelerator`, `ops_on_cpu` and
    `device_copies` (tensors copied between host and accelerator memory in
    one step). They reach the history and every callback that reads the logs,
    such as `CSVLogger`: this one moves before the first of these. A figure
    that cannot be obtained (under XLA, say) is absent.

    Cost: a new train function is watched while it is placed; one that an
    earlier `fit` has built is placed once more. Later steps cost nothing.

    Args:
        deep: also measure, on a copy of the step, bytes copied, time in ops on
            the CPU, and the step's time as placed and on the CPU alone. This
            takes a second trace, and the time and memory of some steps.
        warn: also issue a `PlacementWarning` for what is known to fail or
            to compute wrong numbers. The report lists it in any case.

    Attributes:
        report: a `PlacementReport`, `None` before the first step.

    Raises:
        ValueError: in `fit`, for a model that runs eagerly: it has no graph
            that could be placed.

    Example:

    >>> import keras, numpy
    >>> import keras_pergrad as kpg
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse", jit_compile=False)
    >>> x, y = numpy.ones((8, 4)), numpy.ones((8, 1))
    >>> placement = kpg.callbacks.DevicePlacement()
    >>> history = model.fit(x, y, verbose=0, callbacks=[placement])
    ... # doctest: +ELLIPSIS
    <BLANKLINE>
    Placement...
    >>> sorted(history.history)
    ['device_copies', 'loss', 'ops_on_accelerator', 'ops_on_cpu']
    """

    def __init__(self, deep: bool = False, warn: bool = True):
        super().__init__()
        self.deep: bool = bool(deep)
        self.warn: bool = bool(warn)
        self.report: PlacementReport | None = None
        self._train_function = None
        self._is_in_fit = False

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        if not self._is_in_fit:
            raise ValueError(
                "DevicePlacement reports where a training step runs. Expected "
                "it in fit(callbacks=[...]). Received: a call of evaluate()."
            )

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if self.model.run_eagerly:
            raise ValueError(
                "DevicePlacement reads the graphs of a step. Expected a model "
                "that is compiled with run_eagerly=False; op by op, an op runs "
                "where tf.debugging.set_log_device_placement(True) says. "
                "Received: run_eagerly=True"
            )
        self.report = None
        self._is_in_fit = True
        self._restore()
        callback_list = running_fit(self.model).callback_list
        go_before_readers(self, callback_list)
        self._batches, self._spec = [], None
        self._device = next(iter(machine.accelerators()), None)
        self._warn_of(self._setting_hazards())
        wrapped = train_function.TrainFunctionWrapper(
            self.model, self._first_step
        )
        if wrapped.function is None:
            wrapped.restore()
            raise ValueError(
                "Expected a model in fit(). Received one without a train "
                "function: pass this callback to fit(callbacks=[...])."
            )
        self._train_function = wrapped
        at_end_of_fit(self.model, callback_list, wrapped.restore)
        # A function that an earlier fit has placed shows nothing more.
        compiled = train_function.compiled_functions(wrapped.function)
        self._places_again = train_function.trace_count(compiled) > 0

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._train_function.batch_begins()

    def on_epoch_end(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        if logs is None or self.report is None:
            return
        for name in _COUNTS:
            value = getattr(self.report, name)
            if value is not None:
                logs[name] = value

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self._is_in_fit = False
        self._restore()

    def _restore(self):
        if self._train_function is not None:
            self._train_function.restore()

    def _setting_hazards(self):
        if self._device is None or not self._device.is_metal:
            return []
        return metal.hazards_of_settings(
            self.model.jit_compile, metal.installed()
        )

    def _first_step(self, function, iterator):
        """Run the first step, and the second if the first shows nothing."""
        result = self._run_watched(function, iterator, self._places_again)
        self._places_again = True
        if self.report is not None:
            self._restore()
        return result

    def _run_watched(self, function, iterator, places_again):
        if self.deep:
            batches, iterator = train_function.look_ahead(self.model, iterator)
            self._batches = [without_numbers(batch) for batch in batches or ()]
            spec = train_function.batch_spec(self.model, iterator)
            self._spec = without_numbers(spec) if batches else None
        with placed_graphs(places_again) as run_metadata:
            result = function(iterator)
        partitions = graph.step_partitions(run_metadata[0])
        is_xla_alone = not partitions and self.model.jit_compile
        if not partitions and not places_again and not is_xla_alone:
            return result  # placed before: ask once more
        placed_step = operations.read(partitions, self.model, self._device)
        if is_xla_alone:  # all that Keras calls
            placed_step.opaque.append(("the step", "", graph.XLA))
        report = self._make_report(placed_step)
        setting_hazards = self._setting_hazards()
        self._warn_of([h for h in report.hazards if h not in setting_hazards])
        self.report = report
        print(f"\n{report}")
        return result

    def _make_report(self, placed_step):
        device, model = self._device, self.model
        variables = [
            *model.variables,
            *getattr(model.optimizer, "variables", ()),
        ]
        deep, notes = None, self._notes_on(placed_step)
        if self.deep:
            deep, obstacle = self._measure(placed_step)
            notes += [f"deep=True: not measured. {obstacle}"] * bool(obstacle)
        return PlacementReport(
            device=device and device.name,
            platform="CPU" if device is None else device.platform,
            variables=dict(
                collections.Counter(
                    machine.short_name(v.value.device) for v in variables
                )
            ),
            operations=placed_step.operations,
            copies=placed_step.copies,
            opaque=placed_step.opaque,
            hazards=self._hazards_of(placed_step),
            notes=notes,
            deep=deep,
        )

    def _hazards_of(self, placed_step):
        if self._device is None or not self._device.is_metal:
            return []
        plugin = metal.installed()
        return [
            *self._setting_hazards(),
            *metal.hazards_of_operations(placed_step.operations, plugin),
            *metal.hazards_of_fusion(
                placed_step.nodes, placed_step.layer_of, plugin
            ),
        ]

    def _notes_on(self, placed_step):
        if not placed_step.nodes and not placed_step.opaque:
            return [
                "TensorFlow handed over no graph for this step: the train "
                "function seems to be no tf.function."
            ]
        notes = []
        if self.model.steps_per_execution > 1:
            notes.append(
                f"steps_per_execution={self.model.steps_per_execution}: "
                f"figures are for one of the steps in the loop."
            )
        if graph.turns(placed_step.nodes):
            notes.append(graph.COUNTED_ONCE)
        return notes

    def _measure(self, placed_step):
        """Return a `DeepReport`, or `None` and why there is none."""
        if self.model.jit_compile:
            return None, "XLA runs the step as one piece."
        if placed_step.opaque:
            return None, "What opaque parts copy cannot be seen."
        if not self._batches:
            return None, "The batch comes from a distributed iterator."
        data = tf.nest.map_structure(lambda t: t.numpy(), self._batches[0])
        self._batches = []
        try:
            return replay(self.model, data, self._spec), ""
        except ValueError as error:
            return None, str(error)

    def _warn_of(self, hazards):
        for hazard in hazards if self.warn else ():
            if hazard.severity in ("wrong", "error"):
                layers = ", ".join(hazard.layers)
                text = hazard.message + (f" ({layers})" if layers else "")
                warnings.warn(text, PlacementWarning, stacklevel=2)
