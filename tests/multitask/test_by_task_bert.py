"""`ByTask` on BERT of keras-hub with two heads, one with tied embeddings."""

import keras
import numpy as np
import pytest

import keras_pergrad as kpg
from tests.models.making import compiled


@pytest.mark.slow
def test_bert_with_two_heads():
    hub = pytest.importorskip("keras_hub")
    keras.utils.set_random_seed(0)
    bert = hub.models.BertBackbone(
        40, 2, 2, hidden_dim=16, intermediate_dim=32, dropout=0.0
    )
    found = bert.output
    words = bert.token_embedding(found["sequence_output"], reverse=True)
    words = keras.layers.Activation("softmax", name="words")(words)
    kind = keras.layers.Dense(3, "softmax", name="kind")(found["pooled_output"])
    outputs = {"words": words, "kind": kind}
    rng = np.random.default_rng(4)
    x = {
        "token_ids": rng.integers(1, 40, (8, 12)),
        "segment_ids": np.zeros((8, 12), int),
        "padding_mask": np.ones((8, 12), int),
    }
    y = {"words": rng.integers(0, 40, (8, 12)), "kind": rng.integers(0, 3, 8)}
    start, trained = keras.Model(bert.input, outputs).get_weights(), []
    for mode in (kpg.ByTask("mean"), None, "by_task"):
        cls = keras.Model if mode is None else kpg.PerGradModel
        model = cls(bert.input, outputs)
        model.set_weights(start)
        loss = "sparse_categorical_crossentropy"
        compiled(model, mode, loss, jit_compile=False)
        logs = model.train_on_batch(x, y, return_dict=True)
        trained.append(model.get_weights())
    for a, b in zip(*trained[:2], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert logs["task_conflicts"] == 1  # on these data
    assert logs["task_weight_words"] > 1
    assert any(np.abs(a - b).max() > 1e-4 for a, b in zip(*trained[1:]))
