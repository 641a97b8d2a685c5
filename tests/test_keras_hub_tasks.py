"""A task of keras-hub, used as a task: raw data, defaults, text, presets."""

import keras
import numpy as np
import pytest

import keras_pergrad as kpg

keras_hub = pytest.importorskip("keras_hub")
hub = keras_hub.models
pytestmark = [
    # Of keras-hub, which gives `fit` a data set that it does not shuffle.
    pytest.mark.filterwarnings("ignore:.*shuffle=True"),
    pytest.mark.filterwarnings("ignore:.*compile.. was not called"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
TEXTS = ["air at airport", "an airplane at airport", "airport", "air port"]


def language_model():
    keras.utils.set_random_seed(0)
    merges = ["Ġ a", "Ġa t", "p o", "r t", "a i", "ai r", "po rt"]
    words = {
        w for pair in merges for w in (*pair.split(), pair.replace(" ", ""))
    }
    words |= set("!airplneothdbĠ")
    vocabulary = [*sorted(words), "<|endoftext|>"]
    preprocessor = hub.GPT2CausalLMPreprocessor(
        hub.GPT2Tokenizer({w: i for i, w in enumerate(vocabulary)}, merges),
        sequence_length=8,
    )
    backbone = hub.GPT2Backbone(
        len(vocabulary),
        num_layers=1,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=8,
        max_sequence_length=16,
        dropout=0.0,
    )
    return hub.GPT2CausalLM(backbone, preprocessor=preprocessor)


def classifier(scale=1 / 255):
    keras.utils.set_random_seed(0)
    converter = keras_hub.layers.ViTImageConverter(
        image_size=(16, 16), scale=scale, offset=-0.5
    )
    backbone = hub.ViTBackbone(
        image_shape=(16, 16, 3),
        patch_size=8,
        num_layers=1,
        num_heads=2,
        hidden_dim=8,
        mlp_dim=8,
    )
    return hub.ViTImageClassifier(
        backbone,
        num_classes=2,
        preprocessor=hub.ViTImageClassifierPreprocessor(converter),
    )


def tokens(task):
    """What the task's preprocessor makes of the texts, as arrays."""
    x, y, weights = task.preprocessor(TEXTS)
    x = {name: np.array(part) for name, part in x.items()}
    return x, np.array(y), np.array(weights, "float32")


def compared(task, *data, **arguments):
    """Return the histories of the task, and of a model made of it."""
    weights = task.get_weights()
    task.compile("sgd", jit_compile=False)
    expected = task.fit(*data, verbose=0, **arguments).history
    task.set_weights(weights)
    model = kpg.PerGradModel.from_model(task)
    model.compile("sgd", jit_compile=False, gradient_mode="vectorized")
    found = model.fit(*data, verbose=0, **arguments).history
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], 1e-4)
    return model


def test_strings_go_through_the_tokenizer():
    task = language_model()
    model = compared(
        task, TEXTS, batch_size=2, epochs=2, validation_data=(TEXTS[:2],)
    )
    assert "sparse_categorical_accuracy" in model.evaluate(
        TEXTS, verbose=0, return_dict=True
    )
    predicted = model.predict(TEXTS, verbose=0)
    np.testing.assert_array_equal(predicted, task.predict(TEXTS, verbose=0))


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")
def test_lora_beside_weights_of_8_bits():
    """QLoRA: the weights of 8 bits are frozen, the factors trained."""
    task = language_model()
    task.backbone.quantize("int8")
    task.backbone.enable_lora(2)
    model = compared(task, TEXTS, batch_size=2, epochs=2)
    assert {v.dtype for v in model.trainable_variables} == {"float32"}
    assert any("lora" in v.path for v in model.trainable_variables)
    assert any(v.dtype == "int8" for v in model.weights)


def test_images_are_converted():
    images = np.random.default_rng(0).integers(0, 256, (8, 20, 20, 3))
    images, labels = images.astype("float32"), np.arange(8) % 2
    task = classifier()
    model = compared(task, images, labels, batch_size=4)
    found = model.predict(images, verbose=0)
    np.testing.assert_array_equal(found, task.predict(images, verbose=0))
    other = kpg.PerGradModel.from_model(classifier(scale=1.0))
    assert not np.allclose(other.predict(images, verbose=0), found)


def test_defaults_are_taken_over():
    task = language_model()
    model = kpg.PerGradModel.from_model(task)
    assert not model.compiled
    model.compile(gradient_mode=kpg.Vectorized(kpg.ClippedMean(0.1)))
    assert model.optimizer.learning_rate == task.optimizer.learning_rate
    assert type(model.loss) is type(task.loss)
    model.compile("sgd", "mse", sampler="greedy", weighted_metrics=[])
    assert type(model.sampler).__name__ == "GreedySampler"


def test_it_generates_what_the_task_does():
    task = language_model()
    task.compile(sampler="greedy", jit_compile=False)
    model = kpg.PerGradModel.from_model(task)
    model.compile(gradient_mode="vectorized", sampler="greedy")
    model.fit(TEXTS, batch_size=4, verbose=0)
    text = model.generate("air", max_length=6)
    assert text.startswith("air")
    assert text == task.generate("air", max_length=6)


def test_it_is_published_as_the_task(tmp_path):
    model = kpg.PerGradModel.from_model(language_model())
    model.save_to_preset(tmp_path / "preset")
    task = hub.CausalLM.from_preset(str(tmp_path / "preset"))
    assert type(task) is hub.GPT2CausalLM
    for mine, its in zip(model.get_weights(), task.get_weights()):
        np.testing.assert_array_equal(mine, its)
    assert type(model).__name__ == "PerGradGPT2CausalLM"


def test_it_is_saved_with_lora_sampler_and_tokenizer(tmp_path):
    task = language_model()
    task.backbone.enable_lora(2)
    model = kpg.PerGradModel.from_model(task)
    model.compile(
        gradient_mode=kpg.Vectorized(kpg.ClippedMean(1.0)),
        sampler="greedy",
        jit_compile=False,
    )
    # Tokens are taken as well.
    x, y, weights = tokens(model)
    model.fit(x, y, 2, weights, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded) is type(model)
    assert type(loaded.sampler) is type(model.sampler)
    assert len(loaded.trainable_variables) == len(model.trainable_variables)
    assert int(loaded.optimizer.iterations) == 2
    np.testing.assert_array_equal(
        loaded.predict(TEXTS, verbose=0), model.predict(TEXTS, verbose=0)
    )


def test_without_a_preprocessor_private_batches_are_taken():
    task = language_model()
    private = kpg.PrivateTraining(
        noise_multiplier=1.0,
        delta=1e-3,
        clip_norm=1.0,
        samples=4,
        batch_size=2,
        epochs=1,
        user_ids="unique",
    )
    model = kpg.PerGradModel.from_model(task)
    model.compile(
        gradient_mode=private.gradient_mode,
        weighted_metrics=None,
        jit_compile=False,
    )
    data = private.batches(*tokens(task))
    with pytest.raises(ValueError, match=r"set model\.preprocessor = None"):
        model.fit(data, callbacks=[private.callback])
    model.preprocessor = None
    history = model.fit(data, callbacks=[private.callback], verbose=0).history
    assert history["epsilon"][0] > 0


def test_a_preset_does_not_hold_the_seeds_of_private_training(tmp_path):
    h5py = pytest.importorskip("h5py")
    model = kpg.PerGradModel.from_model(classifier())
    private = kpg.PrivateTraining(
        noise_multiplier=1.0, delta=1e-3, samples=4, batch_size=2
    )
    model.compile(gradient_mode=private.gradient_mode)
    state = model.aggregation_state
    model.save_to_preset(tmp_path / "preset")
    assert model.aggregation_state is state
    with h5py.File(tmp_path / "preset" / "task.weights.h5") as file:
        assert "layers" in file
        assert "aggregation_state" not in file
    task = hub.ImageClassifier.from_preset(str(tmp_path / "preset"))
    for mine, its in zip(model.get_weights(), task.get_weights()):
        np.testing.assert_array_equal(mine, its)


def test_arrays_that_keras_hub_feeds_through_grain_are_arrays():
    """From 0.32 on; Keras then does not know how many batches there are."""
    images = np.random.default_rng(0).integers(0, 256, (7, 20, 20, 3))
    data = images.astype("float32"), np.arange(7) % 2
    stall = kpg.callbacks.DataStall(warn_above=1)
    variance = kpg.callbacks.GradientVariance()
    model = compared(classifier(), *data, batch_size=2, shuffle=False)
    how = {"batch_size": 2, "verbose": 0, "shuffle": False, "epochs": 2}
    model.fit(*data, callbacks=[stall, variance], **how)
    assert [report.steps for report in stall.reports] == [4, 4]
    assert all(report.data_stall_s >= 0 for report in stall.reports)
    # The last update of an epoch has what is left.
    model.compile("sgd", jit_compile=False, gradient_mode=kpg.Accumulated(3))
    model.fit(*data, **how)
    assert int(model.optimizer.iterations) == 4


@pytest.mark.slow
def test_memory_is_asked_of_what_the_preprocessor_gives():
    model = kpg.PerGradModel.from_model(classifier())
    model.compile("sgd", jit_compile=False)
    x, y = np.ones((1, 16, 16, 3), "float32"), np.zeros((1,), "int32")
    found = kpg.diagnose.what_fits(model, x, y, memory="16GB", at_most=2)
    assert found.size == 2
