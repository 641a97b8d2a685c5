"""All instruments from single samples on a plain GradientTape, in float64."""

import keras
import numpy as np
import tensorflow as tf

from tests import oracle


def figures(model, before, batch, *, rate):
    """Return the figures at a model's weights, `before` an update."""
    now = model.get_weights()
    end = _samples(model, *batch)
    first = trained_weights(model, before)
    start = _samples(model, *batch)
    moved = trained_weights(model, now) - first
    length = np.linalg.norm(moved)
    g, n = end["gradients"], len(end["gradients"])
    mean = g.mean(0)
    size = np.linalg.norm(mean)
    off = g - mean
    along = (g @ mean)[:, None] * mean / size**2

    def bound(deviations):
        return np.sqrt(np.square(deviations).sum() / n / (n - 1)) / size

    # Weights that no sample moves by more than rounding are left out.
    squares = (g**2).sum(0)
    some = squares > squares.max() * (16 * np.finfo("float64").eps) ** 2
    noise = np.maximum(off.var(0), 1e-6 * (g**2).mean(0))[some]
    ratio = np.mean(mean[some] ** 2 / noise)
    return {
        "gradient_norm_test": bound(off),
        "gradient_inner_product_test": bound(off @ mean / size),
        "gradient_orthogonality_test": bound(g - along),
        "gradient_cabs": rate * (off**2).sum() / n / end["loss"],
        "gradient_snr_by_weight": ratio,
        "gradient_early_stopping": 1 - (n - 1) * ratio,
        "gradient_update_ratio": length / np.linalg.norm(first),
        "gradient_distance": length,
        "gradient_alpha": alpha(moved, start, end),
        "gradient_dead_units": dead_fraction(model, g),
    }


def trained_weights(model, weights):
    """Set all weights; return the trained ones in a row."""
    model.set_weights(weights)
    return np.concatenate([np.ravel(v) for v in model.trainable_variables])


def alpha(moved, start, end):
    """Cockpit's fit by its normal equations, in units of the update."""
    slopes = [e["gradients"] @ moved for e in (start, end)]
    values = [e["loss"] for e in (start, end)] + [s.mean() for s in slopes]
    noise = [e["losses"].var(ddof=1) for e in (start, end)]
    noise += [s.var(ddof=1) for s in slopes]
    phi = np.array([[1, 0, 0], [1, 1, 1], [0, 1, 0], [0, 1, 2]], float)
    inverse = np.diag(1 / np.array(noise))
    fit = np.linalg.solve(phi.T @ inverse @ phi, phi.T @ inverse @ values)
    return -1.0 if fit[2] < 0 else 2 / (-fit[1] / fit[2]) - 1


def dead_fraction(model, gradients):
    """The fraction of columns of Dense and Conv layers without gradients."""
    stops = np.cumsum([np.prod(v.shape) for v in model.trainable_variables])
    parts = np.split(gradients, stops[:-1], axis=1)
    still = {
        v.path: (part.reshape(-1, v.shape[-1]) == 0).all(0)
        for v, part in zip(model.trainable_variables, parts)
    }
    dead = [
        np.all([still[v.path] for v in layer.trainable_variables], axis=0)
        for layer in model._flatten_layers()
        if isinstance(layer, (keras.layers.Dense, keras.layers.Conv2D))
        and layer.trainable_variables
    ]
    return np.mean(np.concatenate(dead))


def _samples(model, x, y, sample_weight):
    """Gradients (n, P), losses (n,) and the loss of the data."""
    rows = oracle.per_sample_gradients(model, x, y, sample_weight)
    n = len(tf.nest.flatten(x)[0])
    flat = [
        np.zeros((n, int(np.prod(v.shape)))) if g is None else g.reshape(n, -1)
        for v, g in zip(model.trainable_variables, rows)
    ]
    y_pred = model(x)
    parts = []
    for i in range(n):
        # The others weigh nothing, which changes no denominator.
        alone = tf.nest.map_structure(
            lambda t, i=i: _alone(t, i, sample_weight), y_pred
        )
        parts.append(n * float(model._compile_loss(y, y_pred, alone)))
    return {
        "gradients": np.concatenate(flat, 1),
        "losses": np.array(parts),
        "loss": np.mean(parts),
    }


def _alone(output, i, sample_weight):
    shape = output.shape[:1] if output.shape.rank < 3 else output.shape[:2]
    weight = np.zeros(shape)
    weight[i] = 1 if sample_weight is None else sample_weight[i]
    return weight
