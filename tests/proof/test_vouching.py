"""Ops without a rule: refused by name, vouched for, or given a rule."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.proof import tensor_types
from keras_pergrad.proof.tensor_types import RULES
from tests import oracle
from tests.models.making import compiled, net, trained

pytestmark = pytest.mark.usefixtures("float64")
layers = keras.layers
_rng = np.random.default_rng(4)
X, Y = _rng.normal(size=(4, 5)), _rng.normal(size=(4, 3))
MODES = ["vectorized", "per_sample", kpg.Accumulated(microbatch_size=2)]


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


def _compiled(*parts, mode="vectorized", **settings):
    """A model with `parts`, or with a Dense layer and a foreign one."""
    keras.utils.set_random_seed(2)
    parts = parts or (layers.Dense(4, "tanh"), Foreign(name="foreign"))
    return compiled(net(*parts), mode, **settings)


def _fit(mode, **settings):
    model = _compiled(mode=mode, **settings)
    trained(model, X, Y)
    return model


def _assert_exact(model):
    oracle.check(kpg.per_sample_gradients(model, X, Y), model, X, y=Y)


@pytest.mark.parametrize("mode", MODES)
def test_an_op_without_a_rule_is_refused_by_name(mode):
    with pytest.raises(ValueError, match="foreign") as caught:
        _fit(mode)
    text = str(caught.value)
    assert "PyFunc" in text
    assert "has no type rule" in text
    assert "register_type_rule" in text or "vouched" in text


@pytest.mark.parametrize(
    ("mode", "vouched"),
    [
        *((mode, ["foreign"]) for mode in MODES),
        ("vectorized", "foreign"),
        ("vectorized", ["PyFunc"]),
    ],
)
def test_what_is_vouched_for_is_exact(mode, vouched):
    _assert_exact(_fit(mode, vouched=vouched))


@pytest.mark.parametrize("name", ["nothing", "NoSuchOp", 3])
def test_unknown_names_are_refused(name):
    with pytest.raises(ValueError, match=rf"Received: (vouched=.)?{name!r}"):
        _fit("vectorized", vouched=[name])


def test_vouching_is_saved_with_the_model(tmp_path):
    model = _fit("vectorized", vouched=["foreign"])
    assert model.get_compile_config()["vouched"] == ["foreign"]
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.vouched == ("foreign",)
    trained(loaded, X, Y)


def test_a_rule_of_ones_own_serves_the_op():
    @kpg.extending.register_type_rule("PyFunc", "EagerPyFunc")
    def same(op, types):
        assert op.n == op.shape(0)[0]
        return types[0]

    _assert_exact(_compiled())


def test_a_rule_of_ones_own_refuses():
    @kpg.extending.register_type_rule("PyFunc", "EagerPyFunc")
    def never(op, types):
        raise kpg.extending.Mixes("asks the other samples")

    with pytest.raises(ValueError, match="asks the other samples"):
        kpg.per_sample_norms(_compiled(), X, Y)


def test_a_rule_of_ones_own_looks_at_the_inputs_it_names():
    kpg.extending.register_type_rule("PyFunc", "EagerPyFunc", inputs=1)(
        lambda op, types: types[0]
    )
    with pytest.raises(ValueError, match="takes its input `input` from the"):
        kpg.per_sample_norms(_compiled(), X, Y)


@pytest.mark.parametrize("wrong", ["some", None, [0], (0, "x")])
def test_inputs_of_a_rule_are_places(wrong):
    with pytest.raises(TypeError, match="`inputs` expected the place"):
        kpg.extending.register_type_rule("OwnOp", inputs=wrong)


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


def _dense(name):
    return layers.Dense(4, name=name)


@pytest.mark.parametrize(
    ("first", "refused", "served"),
    [
        (Foreign, [["foreign"], ["foreign_1"]], ["foreign", "foreign_1"]),
        # The scope of the first layer has the name of the second one.
        (_dense, [[], ["foreign"]], ["foreign_1"]),
    ],
)
def test_each_of_two_layers_is_vouched_for_by_itself(first, refused, served):
    def made(vouched):
        parts = first(name="foreign"), Foreign(name="foreign_1")
        return _compiled(layers.Dense(4), *parts, vouched=vouched)

    for vouched in refused:
        with pytest.raises(ValueError, match="has no type rule") as caught:
            kpg.per_sample_norms(made(vouched), X, Y)
        if first is not Foreign:
            assert "'foreign_1' (Foreign)" in str(caught.value)
    _assert_exact(made(served))


class Counted(layers.Layer):
    """Sums the entries above zero: how many there are follows the values."""

    def call(self, x):
        at = tf.where(x > 0)
        found = tf.gather_nd(x, at) * tf.ones(tf.shape(at)[:1], x.dtype)
        return tf.math.unsorted_segment_sum(found, at[:, 0], tf.shape(x)[0])[
            :, None
        ]


def test_a_vouched_layer_of_unknown_sizes_is_named_without_the_same_advice():
    model = _compiled(Counted(name="bag"), vouched=["bag"])
    with pytest.raises(ValueError, match="layer 'bag'") as caught:
        trained(model, X, Y, batch_size=4)
    assert "vouched=" not in str(caught.value)
