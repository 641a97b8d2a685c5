"""Whether a loss of the user's own keeps the samples apart.

Where it does, what a change of one sample's output adds to the loss is the
same whatever the outputs of the others are.

Private names in use: `Model._compile_loss`, `CompileLoss._flat_losses`.
"""

import weakref

import keras
import tensorflow as tf

from keras_pergrad.losses import total_loss
from keras_pergrad.trial.samples import few
from keras_pergrad.trial.trust import is_ours

_FOUND = weakref.WeakKeyDictionary()
_SAMPLES = 4


def require_apart(model, x, y, y_pred, sample_weight):
    """Raises a ValueError if the loss compares samples with each other.

    Only losses that Keras does not know are looked at, once, on made-up
    numbers where the batch's own are not known yet.
    """
    if _is_known(model):
        return
    known = _FOUND.setdefault(model, [None, None])
    loss = model._compile_loss
    if known[0] is None or known[0]() is not loss:
        try:
            with tf.init_scope(), keras.StatelessScope(collect_losses=True):
                apart = _is_apart(model, x, y, y_pred, sample_weight)
        except Exception:
            # It takes only what cannot be made up.
            apart = True
        known[:] = weakref.ref(loss), apart
    if not known[1]:
        raise ValueError(_COUPLED.format(name=model.name))


def _is_known(model):
    compiled = model._compile_loss
    if compiled is None or type(model).compute_loss is not (
        keras.Model.compute_loss
    ):
        return compiled is None
    return all(
        type(known.loss).__module__.startswith("keras.src.")
        and is_ours(getattr(known.loss, "fn", None))
        for known in getattr(compiled, "_flat_losses", None) or ()
    )


def _is_apart(model, x, y, y_pred, sample_weight):
    batch = few((x, y, y_pred, sample_weight), _SAMPLES)
    x, y, y_pred, sample_weight = batch

    def loss(first, others):
        outputs = tf.nest.map_structure(
            lambda t: tf.concat(
                [t[:1] / 2 if first else t[:1], t[1:] / 4 if others else t[1:]],
                0,
            ),
            y_pred,
        )
        return total_loss(model, x, y, outputs, sample_weight)

    whole = loss(False, False)
    if float(whole) != float(loss(False, False)):
        # It draws by itself and differs without a reason.
        return True
    changes = loss(True, True), -loss(True, False), -loss(False, True)
    parts = [float(part) for part in (whole, *changes)]
    limit = 1e-4 if whole.dtype in (tf.float32, tf.float64) else 0.05
    return not abs(sum(parts)) > limit * sum(map(abs, parts))


_COUPLED = (
    "The loss of model {name!r} compares the samples of a batch with each "
    "other: what one sample's output contributes depends on the outputs of "
    "others, so that per-sample gradients are not defined. Use a sum or a "
    "mean of losses of each sample by itself, or compile with "
    "gradient_mode='batch'."
)
