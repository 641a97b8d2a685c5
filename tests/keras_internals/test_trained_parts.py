"""A loaded model trains what the saved one did, LoRA included."""

import keras
import numpy as np
import pytest

import keras_pergrad as kpg
from tests.power_cut import PowerCut

_rng = np.random.default_rng(5)
X = _rng.integers(0, 9, (12, 6))
Y = _rng.normal(size=(12, 2)).astype("float32")
VECTORIZED = kpg.Vectorized(kpg.ClippedMean(0.1))


def parts(rank=None):
    return [
        keras.layers.Embedding(9, 4, lora_rank=rank, name="table"),
        keras.layers.EinsumDense(
            "abc,cd->abd", (6, 5), lora_rank=rank, name="mixed"
        ),
        keras.layers.Conv1D(3, 2, lora_rank=rank, name="convolved"),
        keras.layers.Flatten(),
        keras.layers.Dense(2, lora_rank=rank, name="head"),
    ]


def chain(layers, model=kpg.PerGradModel):
    outputs = inputs = keras.Input((6,), dtype="int32")
    for layer in layers:
        outputs = layer(outputs)
    return model(inputs, outputs)


@keras.saving.register_keras_serializable("tests")
class Secretive(kpg.PerGradModel):
    """A model whose config says nothing of its layers."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.parts = parts()

    def call(self, x):
        for layer in self.parts:
            x = layer(x)
        return x


def compiled(model):
    model.compile("adam", "mse", gradient_mode=VECTORIZED, jit_compile=False)
    return model


def train(model, **arguments):
    return model.fit(
        X, Y, **{"batch_size": 4, "shuffle": False, "verbose": 0, **arguments}
    )


def with_lora_everywhere():
    return chain(parts(rank=2))


def with_lora_in_one_layer():
    keras.utils.set_random_seed(3)
    model = Secretive()
    model(X)
    *frozen, head = model.parts
    for layer in frozen:
        layer.trainable = False
    head.enable_lora(2)
    return model


def with_frozen_layers():
    model = Secretive()
    model(X)
    model.parts[1].trainable = False
    model.parts[2].bias.trainable = False
    return model


MODELS = [with_lora_everywhere, with_lora_in_one_layer, with_frozen_layers]


def assert_equal(model, other):
    for kind in ("trainable_variables", "non_trainable_variables"):
        ours, theirs = getattr(model, kind), getattr(other, kind)
        assert [v.name for v in ours] == [v.name for v in theirs]
    variables = model.variables + model.optimizer.variables
    others = other.variables + other.optimizer.variables
    assert len(variables) == len(others)
    for variable, its in zip(variables, others):
        np.testing.assert_array_equal(variable, its, err_msg=variable.path)


@pytest.mark.parametrize("make", MODELS)
def test_a_loaded_model_goes_on_as_the_saved_one(make, tmp_path):
    model = compiled(make())
    train(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert_equal(model, loaded)
    layers = zip(model._flatten_layers(), loaded._flatten_layers())
    assert all(a.trainable == b.trainable for a, b in layers)
    before = [v.numpy() for v in model.trainable_variables]
    train(model)
    train(loaded)
    assert_equal(model, loaded)
    changed = [
        not np.array_equal(old, v)
        for old, v in zip(before, model.trainable_variables)
    ]
    assert all(changed)


def test_lora_goes_on_after_an_interruption(tmp_path):
    def run(cut):
        keras.utils.set_random_seed(4)
        model = compiled(with_lora_everywhere())
        backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
        if cut:
            with pytest.raises(RuntimeError, match="power cut"):
                train(model, epochs=3, callbacks=[backup, PowerCut()])
            model = compiled(with_lora_everywhere())
        train(model, epochs=3, callbacks=[backup])
        return model

    assert_equal(run(cut=False), run(cut=True))


def test_weights_of_a_file_fit_a_model_without_lora(tmp_path):
    model = compiled(with_lora_everywhere())
    train(model)
    model.save_weights(tmp_path / "lora.weights.h5")
    plain = chain(parts(), keras.Model)
    plain.load_weights(tmp_path / "lora.weights.h5")
    ours = chain(parts())
    ours.load_weights(tmp_path / "lora.weights.h5")
    predicted = model.predict(X, verbose=0)
    np.testing.assert_allclose(plain.predict(X, verbose=0), predicted, 1e-5)
    np.testing.assert_allclose(ours.predict(X, verbose=0), predicted, 1e-5)


def test_a_file_of_keras_has_only_what_is_merged(tmp_path):
    plain = chain(parts(), keras.Model)
    plain.save_weights(tmp_path / "plain.weights.h5")
    model = with_lora_everywhere()
    model.load_weights(tmp_path / "plain.weights.h5")
    np.testing.assert_allclose(
        model.predict(X, verbose=0), plain.predict(X, verbose=0), 1e-5
    )


def test_a_copy_is_trained_where_its_model_is():
    model = compiled(chain(parts()))
    model.layers[2].trainable = False
    copy = keras.models.clone_model(model)
    assert [layer.trainable for layer in copy.layers] == [
        layer.trainable for layer in model.layers
    ]


def test_other_layers_are_said(tmp_path):
    model = compiled(with_frozen_layers())
    config = model.get_compile_config()
    other = chain(parts()[:1] + parts()[3:])
    with pytest.warns(UserWarning, match="saved with 5 layers.*with 4"):
        other.compile_from_config(config)
    assert other.compiled


def test_models_of_keras_hub(tmp_path):
    models = pytest.importorskip("keras_hub").models
    backbone = models.BertBackbone(
        vocabulary_size=9,
        num_layers=1,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=8,
        max_sequence_length=6,
        dropout=0.0,
    )
    backbone.enable_lora(2)
    inputs = {
        name: keras.Input((6,), dtype="int32", name=name)
        for name in backbone.input
    }
    outputs = keras.layers.Dense(2)(backbone(inputs)["pooled_output"])
    model = compiled(kpg.PerGradModel(inputs, outputs))
    x = {name: X % 2 for name in inputs} | {"padding_mask": np.ones_like(X)}
    model.fit(x, Y, batch_size=6, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert_equal(model, loaded)
    assert (
        len(loaded.trainable_variables) == 8
    )  # of queries, values and the head
    adapters = tmp_path / "adapters.lora.h5"
    next(
        layer for layer in loaded.layers if layer.name == backbone.name
    ).save_lora_weights(adapters)
    backbone.load_lora_weights(adapters)
    assert_equal(model, loaded)
