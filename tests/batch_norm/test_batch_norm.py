"""Models with another normalisation in the place of batch normalisation."""

import keras
import numpy as np
import pytest

import keras_pergrad as kpg
from keras_pergrad.batch_norm.exchange import groups_for
from tests import oracle
from tests.models.making import assert_equal, compiled, integers, net, normal
from tests.real_models import loss, unfrozen

L = keras.layers
BatchNorm = L.BatchNormalization
WAYS = pytest.mark.parametrize("by", ["group", "layer", "frozen"])
CLASSES = {
    "group": L.GroupNormalization,
    "layer": L.LayerNormalization,
    "frozen": BatchNorm,
}


class Block(L.Layer):
    """Normalisation as an attribute, in a list, in a Sequential, in build."""

    def __init__(self, width, **kwargs):
        super().__init__(**kwargs)
        self.width = width
        self.dense = L.Dense(width)
        self.norms = [BatchNorm(), BatchNorm()]
        self.inner = keras.Sequential([L.Dense(width), BatchNorm()])

    def build(self, shape):
        self.late = BatchNorm(name="late")
        wide = (*shape[:-1], self.width)
        self.dense.build(shape)
        for layer in (*self.norms, self.inner, self.late):
            layer.build(wide)

    def call(self, inputs, training=None):
        x = self.dense(inputs)
        for norm in self.norms:
            x = norm(x, training=training)
        return self.late(self.inner(x, training=training), training=training)


class Net(keras.Model):
    """Its `__init__` takes none of Keras's own arguments."""

    def __init__(self):
        super().__init__()
        self.block = Block(4)
        self.out = L.Dense(2)

    def call(self, inputs, training=None):
        return self.out(self.block(inputs, training=training))


def functional():
    """A layer used thrice, a nested model, a mask, ops, a frozen layer."""
    words = keras.Input((6,), dtype="int32")
    norm = BatchNorm(axis=2, epsilon=1e-2, name="twice")
    masked = norm(L.Embedding(9, 8, mask_zero=True, name="table")(words))
    x = norm(L.Embedding(9, 8)(words), training=False) + 0.5
    x = L.Lambda(lambda t: 2 * t)(x)
    inner = keras.Input((6, 8))
    y = BatchNorm(scale=False, name="inside")(L.Dense(4)(inner))
    x = keras.Model(inner, norm(L.Dense(8)(y)), name="nested")(x)
    x = BatchNorm(trainable=False, name="frozen")(x)
    pooled = [L.GlobalAveragePooling1D()(t) for t in (masked, x)]
    return keras.Model(words, L.Dense(3)(L.Concatenate()(pooled)))


def perturb(model):
    """Weights that are no zeros and ones; variances above zero."""
    rng = np.random.default_rng(1)
    for weight in model.weights:
        if weight.name != "seed_generator_state":
            weight.assign(rng.uniform(0.2, 1.0, weight.shape))
    return model


def names(model):
    """Names and paths of the layers within that compute."""
    kept = model._flatten_layers()
    return [(n.name, n.path) for n in kept if not isinstance(n, L.InputLayer)]


def norms(model):
    return {
        layer.path: layer
        for layer in model._flatten_layers()
        if "Normalization" in type(layer).__name__
    }


def check(model, by, kept=()):
    """Replaces in a copy, and asserts what holds for every model."""
    before = model.get_weights()
    new = kpg.replace_batch_norm(model, by)
    assert isinstance(new, type(model))
    assert new is not model
    assert names(new) == names(model)
    for path, layer in norms(model).items():
        assert type(layer) is BatchNorm
        twin = norms(new)[path]
        assert type(twin) is (BatchNorm if path in kept else CLASSES[by])
        assert twin.trainable == (by != "frozen" and path not in kept)
        assert twin.epsilon == layer.epsilon
        assert twin.dtype_policy == layer.dtype_policy
    weights = {w.path: w for w in model.weights}
    gone = {w.path for w in model.weights} - {w.path for w in new.weights}
    assert {weights[path].name for path in gone} == (
        set() if by == "frozen" else {"moving_mean", "moving_variance"}
    )
    for weight in new.weights:
        twin = weights.pop(weight.path)
        assert weight is not twin
        np.testing.assert_array_equal(weight, twin)
    assert_equal(before, model.get_weights())
    return new


def clipped(model):
    return compiled(model, kpg.Vectorized(kpg.ClippedMean(1.0)), loss())


@WAYS
def test_functional(by):
    model = perturb(functional())
    new = check(model, by, kept=("frozen",))
    twice = new.get_layer("twice")
    assert twice in new.get_layer("nested").layers
    assert twice.gamma.shape == (8,)
    assert new.get_layer("nested").get_layer("inside").gamma is None
    x = integers(9, 3, 6)
    assert (by == "frozen") == np.allclose(new(x), model(x))
    if by == "group":
        trained, y = clipped(new), np.array([0, 1, 2])
        found = kpg.per_sample_gradients(trained, x, y)
        oracle.check(found, trained, x, y=y, training=True)


def images():
    first = L.Conv2D(6, 2), BatchNorm(name="norm"), L.ReLU(), L.Dropout(0.5)
    second = BatchNorm(center=False, gamma_regularizer="l2")
    parts = *first, L.Flatten(), L.Dense(8), second, L.Dense(3)
    return sequential(*parts, shape=(5, 5, 2))


@WAYS
def test_sequential_of_images(by):
    new = check(perturb(compiled(images(), loss=loss())), by)
    assert not new.compiled
    x = normal(3, 5, 5, 2, seed=2)
    if by == "group":
        assert [n.groups for n in norms(new).values()] == [3, 1]
    if by == "layer":
        assert new.get_layer("norm").axis in (-1, [-1])
    alone = [np.asarray(new(x[i : i + 1])) for i in range(3)]
    np.testing.assert_allclose(new(x), np.concatenate(alone), atol=1e-5)


@WAYS
def test_subclassed(by):
    model = Net()
    x = normal(3, 3, seed=3)
    model(x)
    perturb(model)
    kept = {w.path: np.array(w) for w in model.weights}
    paths = {*norms(model)}
    new = kpg.replace_batch_norm(model, by, in_place=True)
    assert new is model
    assert {*norms(new)} == paths
    assert {type(layer) for layer in norms(new).values()} == {CLASSES[by]}
    for weight in new.weights:
        np.testing.assert_array_equal(kept[weight.path], weight)
    assert all(n in new._flatten_layers() for n in new.block.norms)
    assert isinstance(new.block.inner.layers[1], CLASSES[by])
    before = {w.path: np.array(w) for w in new.weights}
    clipped(new).fit(x, np.array([0, 1, 1]), verbose=0)
    changed = {
        w.path for w in new.weights if (before[w.path] != w.numpy()).any()
    }
    assert new.out.kernel.path in changed
    late = {w.path for w in new.block.late.weights}
    assert late & changed == (set() if by == "frozen" else late)


def reloaded(model, path):
    model.save(path / "model.keras")
    return keras.saving.load_model(path / "model.keras")


class Graph(keras.Model):
    """A functional model whose own code makes its layers."""

    def __init__(self, name="graph"):
        inputs = keras.Input((4, 4, 3))
        x = BatchNorm(name="first")(L.Conv2D(8, 2, name="conv")(inputs))
        x = BatchNorm(name="second")(x)
        outputs = L.Dense(2, name="out")(L.GlobalAveragePooling2D()(x))
        super().__init__(inputs, outputs, name=name)


def subclassed():
    model = Net()
    model(np.ones((2, 3), "float32"))
    return model


def with_a_block():
    return net(Block(4, name="block"), shape=(3,), units=2)


def with_a_model_inside():
    return net(Graph(), shape=(4, 4, 3), units=2)


def with_images_inside():
    parts = BatchNorm(), images(), BatchNorm(name="outer")
    return net(*parts, shape=(5, 5, 2), units=None)


@WAYS
@pytest.mark.parametrize("make", [images, with_images_inside])
def test_models_of_layers_alone_are_saved_and_loaded(make, by, tmp_path):
    new = perturb(kpg.replace_batch_norm(make(), by))
    again = reloaded(new, tmp_path)
    for layer, its in zip(
        norms(new).values(), norms(again).values(), strict=True
    ):
        assert type(its) is CLASSES[by]
        assert layer.get_config() == its.get_config()
    x = normal(2, *new.input_shape[1:])
    np.testing.assert_allclose(again(x), new(x), rtol=1e-6)


@pytest.mark.quick
def test_made_per_sample_and_saved(tmp_path):
    model = clipped(kpg.replace_batch_norm(images()))
    model.fit(normal(2, 5, 5, 2), np.array([0, 1]), verbose=0)
    again = reloaded(model, tmp_path)
    assert type(again) is type(model)
    assert int(again.optimizer.iterations) == 1
    assert type(again.get_layer("norm")) is L.GroupNormalization


@WAYS
@pytest.mark.parametrize(
    "make", [subclassed, with_a_block, Graph, with_a_model_inside]
)
def test_layers_of_own_code_are_saved_by_their_weights(make, by, tmp_path):
    """From a config they would have batch normalisation again."""
    new = perturb(kpg.replace_batch_norm(make(), by, in_place=True))
    for model in new, compiled(new, kpg.Vectorized(), loss()):
        with pytest.raises(ValueError, match=r"again .* save_weights\(\)"):
            model.save(tmp_path / "model.keras")
    path = tmp_path / "model.weights.h5"
    new.save_weights(path)
    again = kpg.replace_batch_norm(make(), by, in_place=True)
    again.load_weights(path)
    x = normal(2, *((3,) if make is subclassed else new.input_shape[1:]))
    np.testing.assert_allclose(again(x), new(x), rtol=1e-6)


class NoConfig(keras.regularizers.Regularizer):
    """A regulariser that Keras cannot make again."""

    def __call__(self, x):
        return keras.ops.sum(x**2)


@WAYS
def test_in_place_where_no_copy_is_possible(by):
    dense, norm = L.Dense(4, kernel_regularizer=NoConfig()), BatchNorm()
    parts = dense, norm, Opaque(keras.ops.relu), L.Dense(3)
    model = compiled(perturb(sequential(*parts)))
    kernel, gamma = dense.kernel, np.array(norm.gamma)
    with pytest.raises(
        ValueError, match=r"(?s)cannot be copied.*in_place=True"
    ):
        kpg.replace_batch_norm(model, by)
    assert kpg.replace_batch_norm(model, by, in_place=True) is model
    assert type(model.layers[1]) is CLASSES[by]
    assert model.layers[0].kernel is kernel
    np.testing.assert_array_equal(model.layers[1].gamma, gamma)
    assert not model.compiled
    clipped(model).fit(np.ones((2, 4)), np.array([0, 1]), verbose=0)


def test_in_place_takes_all_back_if_one_does_not_run():
    model = sequential(BatchNorm(name="norm"), Masked(), shape=(3, 4))
    expected = model(np.ones((2, 3, 4)))
    with pytest.raises(ValueError, match="does not run once"):
        kpg.replace_batch_norm(model, in_place=True)
    assert {type(layer) for layer in norms(model).values()} == {BatchNorm}
    np.testing.assert_array_equal(model(np.ones((2, 3, 4))), expected)


def test_lora_policies_and_classes_stay():
    inputs = keras.Input((6,))
    dense = L.Dense(4, name="dense")
    x = L.BatchNormalization(dtype="mixed_float16")(dense(inputs))
    model = kpg.PerGradModel(inputs, L.Dense(2, name="out")(x), name="mine")
    dense.enable_lora(2)
    model.layers[-1].bias.trainable = False
    new = check(perturb(model), "group")
    assert new.get_layer("dense").lora_enabled
    assert [v.path for v in new.trainable_variables] == [
        v.path for v in model.trainable_variables
    ]


@pytest.mark.parametrize("name", ["resnet50", "mobilenetv3", "densenet121"])
@pytest.mark.slow
def test_small_nets_of_keras_applications_train(name):
    model, x, y = unfrozen(name)
    for by in ("group", "frozen"):
        new = compiled(check(model, by), "vectorized", loss())
        assert np.isfinite(new.fit(x, y, verbose=0).history["loss"]).all()


@pytest.mark.parametrize(
    "name", ["ResNet50", "MobileNetV3Large", "DenseNet121"]
)
@pytest.mark.slow
def test_keras_applications(name):
    model = getattr(keras.applications, name)(
        weights=None, input_shape=(32, 32, 3), classes=2
    )
    new = check(model, "group")
    for path, layer in norms(new).items():
        channels = norms(model)[path].gamma.shape[0]
        assert channels % layer.groups == 0
        assert 2 <= channels // layer.groups < channels
    x = np.random.default_rng(4).uniform(size=(2, 32, 32, 3))
    assert np.isfinite(new(x)).all()


@pytest.mark.parametrize("most", [None, 1, 3, 8, 32, 100])
def test_groups_divide_channels_and_hold_more_than_one_value(most):
    for channels in range(1, 70):
        for positions in (None, 1, 2, 49):
            groups = groups_for(channels, positions, most)
            assert channels % groups == 0
            assert 1 <= groups <= (most or 32)
            if channels > 1:
                assert channels // groups * (positions or 1) > 1


@pytest.mark.parametrize(
    ("channels", "positions", "most", "groups"),
    [
        (64, 49, None, 32),
        (64, 1, None, 4),
        (64, None, None, 4),
        (72, 49, None, 24),
        (7, 49, None, 1),
        (6, 49, None, 3),
        (8, 1, None, 1),
        (64, 49, 64, 64),
        (64, 1, 64, 32),
        (12, 9, 5, 4),
    ],
)
def test_number_of_groups(channels, positions, most, *, groups):
    assert groups_for(channels, positions, most) == groups


class Hiding(keras.Model):
    """Its normalisation is no attribute."""

    def __init__(self):
        super().__init__(name="hiding")
        norm = BatchNorm(name="made")
        self.normalise = lambda x, training: norm(x, training=training)

    def call(self, inputs, training=None):
        return self.normalise(inputs, training)


class Own(BatchNorm):
    """Another computation."""

    def call(self, inputs, training=None, mask=None):
        return 2 * super().call(inputs, training=training, mask=mask)


class Masked(L.Layer):
    """Calls the normalisation with more than a tensor."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.norm = BatchNorm()

    def build(self, shape):
        self.norm.build(shape)

    def call(self, inputs):
        return self.norm(inputs, mask=inputs[..., 0] > 0)


class Opaque(L.Layer):
    """Keras cannot make another one."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, inputs):
        return self.function(inputs)


def sequential(*layers, shape=(4,)):
    return keras.Sequential([keras.Input(shape), *layers])


def hiding():
    model = Hiding()
    model(np.ones((2, 4), "float32"))
    return model


replace = kpg.replace_batch_norm
REFUSED = {
    "BatchNormalization 'hiding/made', which is no attribute": (
        lambda: replace(hiding(), in_place=True)
    ),
    r"'net' cannot be copied: .*own code\nExpected.*in_place=True": (
        lambda: replace(subclassed())
    ),
    r"'own' \(Own\) overrides": lambda: replace(sequential(Own())),
    "'batch_normalization'.* axis 0": lambda: replace(
        keras.Sequential([keras.Input(batch_shape=(3, 4)), BatchNorm(axis=0)])
    ),
    r"'one' \(BatchNormalization\) would normalise single values": (
        lambda: replace(sequential(L.Dense(1), BatchNorm(name="one")))
    ),
    "'thin'.* single values.* Use by='group'": lambda: replace(
        sequential(BatchNorm(name="thin"), shape=(7, 7, 1)), "layer"
    ),
    "does not run once .* must call the normalisation with one tensor": (
        lambda: replace(sequential(Masked(), shape=(3, 4)))
    ),
    "cannot be copied.*\nExpected .* a `get_config`": (
        lambda: replace(sequential(Opaque(keras.ops.relu), BatchNorm()))
    ),
    r"must be a keras\.Model": lambda: replace(BatchNorm()),
    "'early' is not built": lambda: replace(
        keras.Sequential([BatchNorm()], name="early")
    ),
    "by='batch'": lambda: replace(sequential(BatchNorm()), "batch"),
    "groups=0": lambda: replace(sequential(BatchNorm()), groups=0),
    "goes with by='group' only": lambda: replace(
        sequential(BatchNorm()), "layer", groups=2
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_refusals_name_the_layer(message):
    error = TypeError if message.startswith("must be a") else ValueError
    with pytest.raises(error, match=f"(?s){message}"):
        REFUSED[message]()


def test_the_smallest_map_of_a_shared_layer_counts():
    norm = BatchNorm()
    maps = keras.Input((7, 7, 8))
    small = L.GlobalAveragePooling2D(keepdims=True)(maps)
    model = keras.Model(maps, [norm(maps), norm(small)])
    new = kpg.replace_batch_norm(model, groups=8)
    assert new.get_layer(norm.name).groups == 4


def test_a_thin_map_has_one_group():
    model = sequential(BatchNorm(), shape=(7, 7, 1))
    assert kpg.replace_batch_norm(model).layers[0].groups == 1
