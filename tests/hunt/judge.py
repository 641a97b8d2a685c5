"""What the package makes of a case, against the oracle."""

import contextlib
import dataclasses
import gc
import pathlib
import re
import traceback
import warnings

import keras
import numpy as np
import tensorflow as tf

import keras_pergrad as kpg
from tests.hunt import oracle
from tests.hunt.cases import LEARNING_RATE

SERVED, REFUSED, DIFFERS = "served", "refused", "DIFFERS"
CRASHED, COUPLED = "CRASHED", "COUPLED SERVED"
#: The case itself is at fault: no statement about the package.
INVALID, UNCLEAR = "invalid", "unclear"
FAILURES = (DIFFERS, CRASHED, COUPLED)

_PACKAGE = str(pathlib.Path(kpg.__file__).parent)
_LIMITS = {"float64": 1e-9, "float32": 2e-3, "mixed_bfloat16": 0.15}
#: What float32 may differ by where a step is small beside its weight.
_ROUNDING = 0.02
_GENERIC = {"Input", "InputLayer", "Functional", "Join", "Model"}


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What came of one check of a case.

    Attributes:
        check: "gradients", "norms", "state of the functions", "step",
            "state", "loss", or "case" where none was made.
        outcome: one of the words above.
        detail: how far apart, or the message.
    """

    check: str
    outcome: str
    detail: str = ""

    @property
    def failed(self):
        return self.outcome in FAILURES


def judge(case):
    """The verdicts on a case; of half precision those that come again.

    Rounding can take a sample over a kink; it does so for other numbers or
    not at all, whereas a defect stays. In float32 a step can be lost among
    the digits of the weights; a defect is there in float64 as well.
    """
    found = _judge(case)
    if case.dtype == "float32" and any(map(_may_be_rounding, found)):
        wide = _judge(dataclasses.replace(case, dtype="float64"))
        if not any(v.failed for v in wide):
            found = _unclear(found, [v for v in found if _may_be_rounding(v)])
    for shift in (1, 2) if case.dtype == "mixed_bfloat16" else ():
        if any(v.failed for v in found):
            other = _judge(dataclasses.replace(case, seed=case.seed + shift))
            again = {(v.check, v.outcome) for v in other}
            lost = [v for v in found if (v.check, v.outcome) not in again]
            found = _unclear(found, [v for v in lost if v.failed])
    return found


def _may_be_rounding(verdict):
    return verdict.outcome == DIFFERS and float(verdict.detail) < _ROUNDING


def _unclear(verdicts, which):
    """The verdicts, some of them as unclear."""
    return [
        dataclasses.replace(v, outcome=UNCLEAR) if v in which else v
        for v in verdicts
    ]


def meets(case):
    """Whether the samples of a coupled case meet, by the oracle alone.

    Raises:
        Invalid: plain Keras cannot run the case, or the samples of a case
            that is not coupled do meet.
    """
    with _tidy():
        return _Judge(case).meets


def _judge(case):
    with _tidy():
        try:
            return _Judge(case).verdicts()
        except Invalid as error:
            return [Verdict("case", INVALID, str(error))]


@contextlib.contextmanager
def _tidy():
    """Puts back the float type and policy, and what Keras remembers."""
    policy, floatx = keras.config.dtype_policy(), keras.config.floatx()
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        for config in (keras.config, tf.debugging):
            # It is to be seen where an error was raised.
            if config.is_traceback_filtering_enabled():
                config.disable_traceback_filtering()
                stack.callback(config.enable_traceback_filtering)
        try:
            yield
        finally:
            keras.config.set_floatx(floatx)
            keras.config.set_dtype_policy(policy)
            keras.backend.clear_session(free_memory=False)
            gc.collect(0)


def fit_data_set(model, x, y, sample_weight=None, class_weight=None):
    """Make one step of `fit` for any number of samples; its loss."""
    parts = [x, y] if sample_weight is None else [x, y, sample_weight]
    parts = [tuple(p) if isinstance(p, list) else p for p in parts]
    data = tf.data.Dataset.from_tensor_slices(tuple(parts)).batch(64)
    found = model.fit(data, class_weight=class_weight, verbose=0)
    return found.history["loss"][0]


class Invalid(Exception):
    """Plain Keras cannot run the case, or the oracle contradicts it."""


class _Judge:
    def __init__(self, case):
        self.case = case
        single = case.is_single and case.dtype == "float64"
        self.limit = _LIMITS["float32" if single else case.dtype]
        try:
            space = case.run()
            self.model = space["make"]()
            self.space = space
            self.x, self.y = space["x"], space["y"]
            self.sample_weight = space["sample_weight"]
            self.compile(self.model, run_eagerly=True)
            if not self.model.built:
                self.model(self.x)
            self.start = self.values()
            self.ask_oracle()
            self.ask_keras()
        except Exception as error:
            raise Invalid(brief(error)) from error

    def compile(self, model, **arguments):
        model.compile(
            keras.optimizers.SGD(LEARNING_RATE),
            self.space["loss"],
            loss_weights=self.space["loss_weights"],
            **arguments,
        )

    def values(self):
        return [np.array(v) for v in oracle.all_variables(self.model)]

    def put_back(self):
        for v, value in zip(oracle.all_variables(self.model), self.start):
            v.assign(value)

    def ask_oracle(self):
        case, batch = self.case, (self.x, self.y, self.sample_weight)
        self.mean = oracle.batch_gradient(self.model, *batch)
        self.samples = None
        if case.is_random:
            return
        try:
            # What follows the size of the batch is that of copies.
            self.copies = case.by_size and not case.must_refuse
            self.samples = oracle.contributions(
                self.model, *batch, copies=self.copies
            )
            apart = oracle.distance(_mean(self.samples), self.mean)
        except Exception:
            if not case.must_refuse:
                raise
            self.samples, apart = None, np.inf
        if not case.must_refuse and apart > self.limit:
            raise Invalid(f"single samples do not add up: {apart:.1e}")
        self.meets = case.must_refuse and (
            max(apart, self.moves()) > 3 * self.limit
        )

    def moves(self):
        """How far sample 0 goes when the others' inputs or targets change."""
        if self.samples is None:
            return np.inf
        x, y = _others_changed(self.x), _others_changed(self.y)
        weight, found = self.sample_weight, []
        for batch in ((x, self.y, weight), (self.x, y, weight)):
            (moved,) = oracle.contributions(self.model, *batch, [0])
            found.append(oracle.distance(moved, self.samples[0]))
        return max(found)

    def ask_keras(self):
        """One step of plain Keras: its weights, state and loss."""
        if self.case.is_random and self.case.execution == "xla":
            # Compiled by XLA, TensorFlow draws other numbers.
            self.compile(self.model, jit_compile=True)
        logs = self.model.train_on_batch(
            self.x, self.y, return_dict=True, **self.weighting()
        )
        self.after, self.loss = self.values(), float(logs["loss"])
        self.put_back()
        if not np.isfinite([np.abs(a).sum() for a in self.after]).all():
            raise ValueError("not finite")

    def weighting(self):
        if self.case.class_weight != "None":
            return {"class_weight": eval(self.case.class_weight)}
        return {"sample_weight": self.sample_weight}

    def verdicts(self):
        if self.case.must_refuse and not self.meets:
            return [Verdict("case", UNCLEAR, "the samples did not meet")]
        return self.step() if self.case.asks == "step" else self.functions()

    def functions(self):
        asks, method = self.case.asks, self.case.mode
        function = getattr(kpg, f"per_sample_{asks}")
        if asks == "norms" and self.samples is None:
            function, asks = kpg.per_sample_gradients, "gradients"
        try:
            found = function(
                self.model, self.x, self.y, self.sample_weight, method=method
            )
        except Exception as error:
            self.put_back()
            return [self.thrown(asks, error)]
        after = self.values()
        self.put_back()
        if self.case.must_refuse:
            return [Verdict(asks, COUPLED, method)]
        return [
            self.compared(asks, *self.expected(asks, found)),
            self.compared("state of the functions", after, self.start),
        ]

    def expected(self, asks, found):
        """What was found and what it should be, both as lists of arrays."""
        if asks == "norms":
            return [found], [oracle.norms(self.samples)]
        found = [None if g is None else np.asarray(g) for g in found]
        if self.samples is None:
            return [g if g is None else g.mean(0) for g in found], self.mean
        return found, [
            None if g[0] is None else np.stack(g) for g in zip(*self.samples)
        ]

    def step(self):
        case = self.case
        norms = self.samples and oracle.norms(self.samples)
        broken = self.broken() if case.is_broken and norms is not None else None
        if broken is not None:
            self.x = broken
        # Of samples with a weight of 0 there may be many, and a step that is
        # too small is lost among the digits of the weights.
        some = norms is not None and norms[norms > 0]
        clip = max(float(np.median(some)), 1e-3) if np.any(some) else 1.0
        mode = _mode(case, clip)
        arguments = {"jit_compile": case.execution == "xla"}
        if case.execution == "eager":
            arguments = {"run_eagerly": True}
        try:
            model = kpg.PerGradModel.from_model(self.model)
            self.compile(model, gradient_mode=mode, **arguments)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                loss = self.train(model)
        except Exception as error:
            self.put_back()
            verdict = self.thrown("step", error)
            if verdict.outcome == CRASHED and self.keras_crashes(arguments):
                return [Verdict("step", INVALID, "plain Keras crashes, too")]
            return [verdict]
        found = self.values()
        self.put_back()
        if case.must_refuse:
            return [Verdict("step", COUPLED, repr(mode))]
        places = {
            id(v): k for k, v in enumerate(oracle.all_variables(self.model))
        }
        trained = [places[id(v)] for v in self.model.trainable_variables]
        blank = 0 if broken is None else 1
        changes = self.changes(norms, clip, blank)
        step = self.compared("step", *self.moved(found, trained, changes))
        if broken is not None:
            is_slow = any(
                "are slow in the op" in str(w.message) for w in caught
            )
            if step.failed and is_slow:
                # An op without a rule blanks all samples beside that one.
                blank = case.microbatch or len(norms)
                changes = self.changes(norms, clip, blank)
                moves = self.moved(found, trained, changes)
                step = self.compared("step", *moves)
            # The loss and what the layers keep are no numbers, either.
            return [step]
        checks = [step, self.compared("loss", [loss], [self.loss])]
        of_batch = any(
            getattr(layer, "of_batch", False)
            for layer in self.model._flatten_layers()
        )
        if not (case.microbatch and of_batch):
            kept = [
                [v for k, v in enumerate(values) if k not in trained]
                for values in (found, self.after)
            ]
            checks.append(self.compared("state", *kept))
        return checks

    def train(self, model):
        """Make one step as the case says; its loss."""
        batch, weighting = (self.x, self.y), self.weighting()
        if self.case.execution == "data set":
            return fit_data_set(model, *batch, **weighting)
        logs = model.train_on_batch(*batch, return_dict=True, **weighting)
        return logs["loss"]

    def keras_crashes(self, arguments):
        """Whether plain Keras fails when it is compiled in this way."""
        try:
            self.compile(self.model, **arguments)
            self.train(self.model)
        except Exception:
            return True
        finally:
            self.put_back()
        return False

    def broken(self):
        """Return inputs of which the first is NaN; None: it vanishes."""
        x = np.array(self.x)
        x[0] = np.nan
        batch = self.model, x, self.y, self.sample_weight
        first = oracle.contributions(*batch, [0], copies=self.copies)
        return None if np.isfinite(oracle.norms(first)).all() else x

    def changes(self, norms, clip, blank=0):
        """What the aggregation adds to Keras's gradient, per variable.

        So many samples at the begin are blank.
        """
        if not self.case.clips or norms is None:
            return [0.0] * len(self.model.trainable_variables)
        weights = np.minimum(1, clip / np.maximum(norms, 1e-30)) - 1
        weights[:blank] = -1
        return [
            0.0
            if column[0] is None
            else np.tensordot(weights, np.stack(column), 1) / len(weights)
            for column in zip(*self.samples)
        ]

    def moved(self, found, trained, changes):
        """The steps that were made, and those that should be, in gradients."""
        ours, wanted = [], []
        # A sum of samples that is taken away as a whole leaves the last digits
        # of the largest terms, in small gradients, too.
        rounding = 2**-44 if self.case.dtype == "float64" else 2**-21
        rounding *= max(np.max(np.abs(c), initial=0.0) for c in changes)
        for k, change in zip(trained, changes):
            start, after = self.start[k], self.after[k]
            # The weights do not show a difference below their last digit.
            digit = np.spacing(np.maximum(abs(start), abs(after)))
            start = start.astype("float64")
            step = (start - found[k]) / LEARNING_RATE
            right = (start - after) / LEARNING_RATE + change
            unseen = abs(step - right) <= digit / LEARNING_RATE + rounding
            ours.append(np.where(unseen, right, step))
            wanted.append(right)
        return ours, wanted

    def compared(self, check, found, expected):
        # A gradient that is zero, as that of an attention's key bias, has
        # nothing but the digits of its terms.
        half = self.case.dtype == "mixed_bfloat16"
        apart = oracle.distance(found, expected, 2**-8 if half else 1e-3)
        if apart <= self.limit:
            return Verdict(check, SERVED)
        return Verdict(check, DIFFERS, f"{apart:.1e}")

    def thrown(self, check, error):
        text = str(error)
        deliberate = isinstance(error, (ValueError, NotImplementedError))
        deliberate = deliberate and _raised_in_package(error)
        asserted = isinstance(error, tf.errors.InvalidArgumentError)
        deliberate |= asserted and "gradient_mode" in text
        if deliberate and self.names_something(text):
            return Verdict(check, REFUSED, brief(error))
        return Verdict(
            check, CRASHED, f"{type(error).__name__}: {brief(error)}"
        )

    def names_something(self, text):
        """Whether a message says which layer, op, variable or loss it is."""
        words = set(re.findall(r"[\w./]+", text))
        layers = list(self.model._flatten_layers())
        known = {layer.name for layer in layers}
        known |= {type(layer).__name__ for layer in layers} - _GENERIC
        known |= {v.path for v in self.model.trainable_variables}
        known |= {w for w in words if hasattr(tf.raw_ops, w)} - {"Print"}
        return bool(words & known) or "loss" in words or "output" in words


def _others_changed(values):
    """Other values for all samples but the first."""
    if isinstance(values, list):
        return [_others_changed(v) for v in values]
    values = np.array(values)
    if values.dtype.kind == "f":
        values[1:] = values[1:] * 0.3 + 1
    else:
        values[1:] = values[:1]
    return values


def _mean(samples):
    return [
        None if g[0] is None else np.mean(np.stack(g), 0) for g in zip(*samples)
    ]


def _mode(case, clip):
    aggregation = kpg.ClippedMean(clip) if case.clips else "mean"
    cls = kpg.Vectorized if case.mode == "vectorized" else kpg.PerSample
    mode = cls(aggregation=aggregation)
    if case.microbatch is None:
        return mode
    return kpg.Accumulated(microbatch_size=case.microbatch, inner=mode)


def _raised_in_package(error):
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and frames[-1].filename.startswith(_PACKAGE)


def brief(error):
    """The first lines of a message, without colours."""
    text = re.sub(r"\x1b\[\d+m", "", str(error))
    return " ".join(text.split())[:300]
