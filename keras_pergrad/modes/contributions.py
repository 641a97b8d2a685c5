"""What each microbatch adds to the gradient and the loss of its batch.

A term of the loss is N / D (see fractions). Terms whose D is known from the
size of the batch share one backward pass; each of the others needs a pass and
a sum of its own, divided by its D when that is known.
"""

import keras
import tensorflow as tf

from keras_pergrad.losses import noting_losses, regularization_loss
from keras_pergrad.modes import fractions
from keras_pergrad.modes.base import call_model
from keras_pergrad.tape import first_tensor


class Contributions:
    """A function of a microbatch whose results add up over the batch.

    Args:
        model: the compiled and built model.
        x: the inputs of the whole batch.
        scale: the loss scale, or None.
        sums: for each `add_loss` term whether it is a sum, or a mean.
    """

    def __init__(self, model, x, scale, sums):
        self.model = model
        self.variables = list(model.trainable_variables)
        self.scale = scale
        self.sums = sums
        self.static_rows = first_tensor(x).shape[0]
        self.dtype = keras.config.floatx()
        self.rows = tf.cast(tf.shape(first_tensor(x))[0], self.dtype)
        self.terms = None
        self._per_row = None

    def __call__(self, x, y, sample_weight):
        """Forward and backward passes of one microbatch.

        Returns:
            A dict of what adds up: the gradients of each group of terms, the
            numerators and denominators of each loss, the `add_loss` terms.
        """
        added = []
        rows = tf.shape(first_tensor(x))[0]
        with tf.GradientTape(persistent=True) as tape:
            with noting_losses(self.model, added):
                y_pred = call_model(self.model, x)
            terms = fractions.evaluate(
                self.model._compile_loss, y, y_pred, sample_weight
            )
            self._note(terms, first_tensor(x).shape[0])
            rows = tf.cast(rows, self.dtype)
            extra = self._additional(added, rows)
            targets, units = self._targets(terms, extra, rows)
        gradients = [
            self._gradients(tape, target, unit)
            for target, unit in zip(targets, units)
        ]
        del tape
        self.model.compute_metrics(x, y, y_pred, sample_weight)
        return {
            "gradients": gradients,
            "numerators": [t.numerator for t in terms],
            "denominators": [t.denominator for t in terms],
            "added": extra,
        }

    def _note(self, terms, rows):
        """Keeps what is fixed, from the first microbatch, of known size."""
        if self.terms is None:
            self.terms = terms
            self._per_row = [
                t.count / rows if t.kind == fractions.ROWS else None
                for t in terms
            ]

    def _fixed(self, value, per_row):
        """A loss whose denominator is known beforehand."""
        value = tf.cast(value, self.dtype)
        return value if per_row is None else value / (per_row * self.rows)

    def _additional(self, added, rows):
        """The `add_loss` terms' part in those of the batch, or None."""
        if not added:
            return None
        total = tf.zeros([], self.dtype)
        for loss, is_sum in zip(added, self.sums, strict=True):
            loss = tf.cast(tf.reduce_sum(loss), self.dtype)
            share = rows / self.rows
            total += loss * tf.where(is_sum, tf.ones_like(share), share)
        return total

    def _targets(self, terms, extra, rows):
        """What to differentiate, and the factors of the gradients."""
        known, targets, units = [], [], []
        for term, per_row in zip(terms, self._per_row):
            if term.kind == fractions.DATA:
                # Divided by something of the right size, so that half
                # precision does not overflow, and multiplied afterwards.
                value = tf.cast(term.numerator, self.dtype) / rows
                targets.append(_times(value, term.loss_weight))
                units.append(rows)
            else:
                value = self._fixed(term.numerator, per_row)
                known.append(_times(value, term.loss_weight))
        if extra is not None:
            known.append(extra)
        if known:
            targets.insert(0, tf.add_n(known))
            units.insert(0, None)
        if not targets:
            raise ValueError(
                "No loss to compute. Provide a `loss` argument in `compile()`."
            )
        return [_times(t, self.scale) for t in targets], units

    def _gradients(self, tape, target, unit):
        found = tape.gradient(target, self.variables)
        result = []
        for gradient in found:
            if gradient is not None:
                gradient = tf.convert_to_tensor(gradient)
                gradient = _over(gradient, self.scale)
                gradient = _times(gradient, unit)
            result.append(gradient)
        return result

    def gradients(self, totals):
        """The gradient of the batch, without weight regularisers."""
        sums = list(totals["gradients"])
        data = [t.kind == fractions.DATA for t in self.terms]
        result = sums.pop(0) if len(sums) > sum(data) else None
        for k, gradients in zip([k for k, d in enumerate(data) if d], sums):
            denominator = totals["denominators"][k] + self.terms[k].slack
            gradients = [
                g
                if g is None
                else tf.math.divide_no_nan(g, tf.cast(denominator, g.dtype))
                for g in gradients
            ]
            result = gradients if result is None else _add(result, gradients)
        return result

    def loss(self, totals):
        """The loss of the batch; also updates those of several outputs."""
        values = []
        for k, term in enumerate(self.terms):
            value = totals["numerators"][k]
            if term.kind == fractions.DATA:
                denominator = totals["denominators"][k] + term.slack
                value = tf.math.divide_no_nan(value, denominator)
            values.append(self._fixed(value, self._per_row[k]))
        fractions.track(self.model._compile_loss, values, self.static_rows)
        loss = regularization_loss(self.variables)
        for value, term in zip(values, self.terms):
            loss += _times(value, term.loss_weight)
        return loss if totals["added"] is None else loss + totals["added"]


def _times(value, factor):
    if factor is None:
        return value
    # A cast would take a Python number through single precision.
    factor = tf.cast(factor, value.dtype) if tf.is_tensor(factor) else factor
    return value * factor


def _over(value, divisor):
    return value if divisor is None else value / tf.cast(divisor, value.dtype)


def _add(first, second):
    return [
        b if a is None else a if b is None else a + b
        for a, b in zip(first, second)
    ]
