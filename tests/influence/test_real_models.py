"""Influence of real models: served as their gradients are."""

import numpy as np
import tensorflow as tf

import keras_pergrad as kpg
from tests.influence.making import assert_near, influence_of, rows_of
from tests.real_models import loss
from tests.test_real_models import _made, one_of_each_kind


@one_of_each_kind
def test_scores_of_a_real_model(name):
    model, x, y = _made(name)
    model.compile("sgd", loss())
    gradients = kpg.per_sample_gradients(model, x, y, training=False)
    rows = rows_of(gradients)
    expected = rows.astype("float64") @ rows.T / 3
    data = tf.nest.map_structure(np.asarray, x), y
    found = influence_of(model, *data, batch_size=3).scores(*data)
    assert_near(found, expected, 1e-4)
    for curvature in ("ekfac", "projected"):
        influence = influence_of(
            model, *data, curvature=curvature, batch_size=3
        )
        own = influence.self_influence()
        assert np.isfinite(own).all()
        assert (own >= 0).all()
        scores = influence.scores(*data)
        limit = 1e-3 * np.abs(scores).max()
        np.testing.assert_allclose(np.diag(scores), own, 1e-2, limit)
