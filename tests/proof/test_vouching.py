"""Ops without a rule: refused by name, vouched for, or given a rule."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.proof import tensor_types
from keras_pergrad.proof.tensor_types import RULES
from tests import oracle

pytestmark = pytest.mark.usefixtures("float64")
layers = keras.layers
_rng = np.random.default_rng(4)
X, Y = _rng.normal(size=(4, 5)), _rng.normal(size=(4, 3))


@pytest.fixture(autouse=True)
def _fresh_rules():
    """What a test registers is unknown to the next."""
    tensor_types.USER_RULES.clear()
    yield
    tensor_types.USER_RULES.clear()


@keras.saving.register_keras_serializable("vouching")
class Foreign(layers.Layer):
    """Calls NumPy: doubles its input, forward and backward."""

    def call(self, x):
        @tf.custom_gradient
        def double(h):
            def back(d):
                return self._run(d)

            return self._run(h), back

        return double(x)

    def _run(self, h):
        found = tf.numpy_function(lambda a: 2 * a, [h], h.dtype)
        found.set_shape(h.shape)
        return found

    def compute_output_shape(self, shape):
        return shape


def _model(cls=kpg.PerGradModel):
    keras.utils.set_random_seed(2)
    inputs = keras.Input((5,))
    hidden = layers.Dense(4, "tanh")(inputs)
    hidden = Foreign(name="foreign")(hidden)
    return cls(inputs, layers.Dense(3)(hidden))


def _fit(mode, **arguments):
    model = _model()
    model.compile("sgd", "mse", gradient_mode=mode, **arguments)
    model.fit(X, Y, verbose=0)


@pytest.mark.parametrize(
    "mode", ["vectorized", "per_sample", kpg.Accumulated(microbatch_size=2)]
)
def test_an_op_without_a_rule_is_refused_by_name(mode):
    with pytest.raises(ValueError, match="foreign") as caught:
        _fit(mode)
    text = str(caught.value)
    assert "PyFunc" in text
    assert "has no type rule" in text
    assert "register_type_rule" in text or "vouched" in text


@pytest.mark.parametrize("vouched", [["foreign"], "foreign", ["PyFunc"]])
def test_what_is_vouched_for_is_exact(vouched):
    model = _model()
    model.compile("sgd", "mse", gradient_mode="vectorized", vouched=vouched)
    oracle.check(kpg.per_sample_gradients(model, X, Y), model, X, Y)
    model.fit(X, Y, verbose=0)


@pytest.mark.parametrize(
    "mode", ["per_sample", kpg.Accumulated(microbatch_size=2)]
)
def test_every_mode_takes_what_is_vouched_for(mode):
    _fit(mode, vouched=["foreign"])


def test_vouching_is_for_this_layer_alone():
    with pytest.raises(ValueError, match="foreign"):
        _fit("vectorized", vouched=["dense"])


@pytest.mark.parametrize("name", ["nothing", "NoSuchOp", 3])
def test_unknown_names_are_refused(name):
    with pytest.raises(ValueError, match=f"Received: {name!r}"):
        _fit("vectorized", vouched=[name])


def test_vouching_is_saved_with_the_model(tmp_path):
    model = _model()
    model.compile("sgd", "mse", gradient_mode="vectorized", vouched=["foreign"])
    model.fit(X, Y, verbose=0)
    assert model.get_compile_config()["vouched"] == ["foreign"]
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.vouched == ("foreign",)
    loaded.fit(X, Y, verbose=0)


def test_a_rule_of_ones_own_serves_the_op():
    model = _model()
    model.compile("sgd", "mse", gradient_mode="vectorized")

    @kpg.extending.register_type_rule("PyFunc", "EagerPyFunc")
    def same(op, types):
        assert op.n == op.shape(0)[0]
        return types[0]

    oracle.check(kpg.per_sample_gradients(model, X, Y), model, X, Y)


def test_a_rule_of_ones_own_refuses():
    model = _model()
    model.compile("sgd", "mse", gradient_mode="vectorized")

    @kpg.extending.register_type_rule("PyFunc", "EagerPyFunc")
    def never(op, types):
        raise kpg.extending.Mixes("asks the other samples")

    with pytest.raises(ValueError, match="asks the other samples"):
        kpg.per_sample_norms(model, X, Y)


def test_a_rule_is_registered_once():
    def rule(op, types):
        return types[0]

    assert kpg.extending.register_type_rule("OwnOp")(rule) is rule
    with pytest.raises(ValueError, match="OwnOp has a type rule already"):
        kpg.extending.register_type_rule("OwnOp")
    kpg.extending.register_type_rule("OwnOp", replace=True)(rule)
    with pytest.raises(ValueError, match="MatMul has a type rule already"):
        kpg.extending.register_type_rule("MatMul")
    assert "OwnOp" not in RULES


@pytest.mark.parametrize("wrong", [3, None, tf.matmul, ["MatMul"]])
def test_types_of_ops_are_strings(wrong):
    with pytest.raises(TypeError, match="expected the types of ops"):
        kpg.extending.register_type_rule(wrong)


def test_vouching_for_a_second_layer_leaves_out_the_first():
    inputs = keras.Input((5,))
    hidden = Foreign(name="foreign")(layers.Dense(4)(inputs))
    hidden = Foreign(name="foreign_1")(hidden)
    model = kpg.PerGradModel(inputs, layers.Dense(3)(hidden))
    for names in (["foreign"], ["foreign_1"]):
        model.compile("sgd", "mse", gradient_mode="vectorized", vouched=names)
        with pytest.raises(ValueError, match="has no type rule"):
            kpg.per_sample_norms(model, X, Y)
    names = ["foreign", "foreign_1"]
    model.compile("sgd", "mse", gradient_mode="vectorized", vouched=names)
    oracle.check(kpg.per_sample_gradients(model, X, Y), model, X, Y)


def test_vouching_for_the_first_of_two_says_nothing_of_the_second():
    inputs = keras.Input((5,))
    hidden = layers.Dense(4, name="foreign")(inputs)
    hidden = Foreign(name="foreign_1")(hidden)
    model = kpg.PerGradModel(inputs, layers.Dense(3)(hidden))
    model.compile("sgd", "mse", gradient_mode="vectorized")
    with pytest.raises(ValueError, match=r"'foreign_1' \(Foreign\)"):
        kpg.per_sample_norms(model, X, Y)
    # The scope of the first layer has the name of the second one.
    model.compile("sgd", "mse", gradient_mode="vectorized", vouched=["foreign"])
    with pytest.raises(ValueError, match=r"'foreign_1' \(Foreign\)"):
        kpg.per_sample_norms(model, X, Y)
    names = ["foreign_1"]
    model.compile("sgd", "mse", gradient_mode="vectorized", vouched=names)
    oracle.check(kpg.per_sample_gradients(model, X, Y), model, X, Y)


class Counted(layers.Layer):
    """Sums the entries above zero: how many there are follows the values."""

    def call(self, x):
        at = tf.where(x > 0)
        found = tf.gather_nd(x, at) * tf.ones(tf.shape(at)[:1], x.dtype)
        return tf.math.unsorted_segment_sum(found, at[:, 0], tf.shape(x)[0])[
            :, None
        ]


def test_a_vouched_layer_of_unknown_sizes_is_named_without_the_same_advice():
    inputs = keras.Input((5,))
    outputs = layers.Dense(3)(Counted(name="bag")(inputs))
    model = kpg.PerGradModel(inputs, outputs)
    given = {"gradient_mode": "vectorized", "vouched": ["bag"]}
    model.compile("sgd", "mse", **given)
    with pytest.raises(ValueError, match="layer 'bag'") as caught:
        model.fit(X, Y, batch_size=4, verbose=0)
    assert "vouched=" not in str(caught.value)
