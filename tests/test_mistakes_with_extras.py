"""What newcomers get wrong with the extras, and what they are told."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests.models.making import compiled, net, unchanged

X = np.random.default_rng(0).normal(size=(12, 4)).astype("float32")
Y = X[:, :3]
CLASSES = np.arange(12) % 3
TEXTS = np.array([["a"] * 4] * 12)
TYPE, VALUE = TypeError, ValueError
NO_BOOL = "expected True or False"
NO_NUMBERS = "expected numbers as `x`.*StringLookup"
IN_FUNCTION = "Expected a call outside of it"
GradientVariance = kpg.callbacks.GradientVariance
Influence = kpg.influence.Influence


def model(loss="mse"):
    return compiled(net(shape=(4,)), loss=loss)


def classifier():
    return model(keras.losses.SparseCategoricalCrossentropy(from_logits=True))


def watch(*probe, made=None, y=Y):
    made = made or model()
    with unchanged(made):
        made.fit(X, y, verbose=0, callbacks=[GradientVariance(probe)])


def influence(made=None, x=X, y=Y, **arguments):
    given = {"curvature": "none", "verbose": 0, **arguments}
    return Influence(made or model(), x, y, **given)


def predicting(x):
    return influence(classifier(), y=CLASSES).scores(x, of="prediction")


def private():
    return kpg.PrivateTraining(
        delta=1e-3, samples=12, batch_size=4, epochs=1, noise_multiplier=1.0
    )


def vectorized(loss):
    made = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    made = kpg.PerGradModel.from_model(made)
    made.compile("sgd", loss, gradient_mode="vectorized")
    return made


def value(*validation, loss="mse", y=Y):
    made = vectorized(loss)
    values = kpg.callbacks.SampleValues(validation)
    with unchanged(made):
        made.fit(X, y, verbose=0, callbacks=[values])


def value_classes(*validation):
    logits = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    value(*validation, loss=logits, y=CLASSES)


def fisher_of(y, x=X, **arguments):
    return kpg.influence.fisher(
        classifier(), x, y, labels="data", verbose=0, **arguments
    )


def read(reader):
    with vectorized("mse").read_steps(reader):
        pass


def named(name):
    made = vectorized("mse")
    made.compute_gradients(lambda x, y, w: made(x), X, Y, name=name)


def audit(**arguments):
    given = {"canaries": range(10), "epochs": 1, **arguments}
    kpg.privacy.audit_privacy(model, private(), X, Y, **given)


def in_a_function(call):
    return tf.function(call, autograph=False)


def run(**arguments):
    return GradientVariance(log_dir="unused", **arguments)


#: What is wrong → the error, what it says, and the mistake.
MISTAKES = {
    # A probe
    "texts": (VALUE, f"`probe`.*{NO_NUMBERS}", lambda: watch(TEXTS, Y)),
    "texts_as_targets": (
        *(VALUE, "`probe`.*Number the classes"),
        lambda: watch(X, TEXTS[:, 0], made=classifier(), y=CLASSES),
    ),
    "list_of_texts": (
        *(VALUE, r"a list of texts.*numpy\.asarray\(x\)"),
        lambda: GradientVariance((TEXTS.tolist(), Y)),
    ),
    "classes_of_a_probe": (
        *(VALUE, r"`probe`.*\[0, 3\).*from 0 to the number of outputs"),
        lambda: watch(X, CLASSES + 5, made=classifier(), y=CLASSES),
    ),
    "probe_without_targets": (
        *(VALUE, "`probe`.*Expected `y`"),
        lambda: watch(X),
    ),
    "weights_of_a_probe": (
        *(VALUE, "`sample_weight` expected an array of real numbers"),
        lambda: GradientVariance((X, Y, TEXTS[:, 0])),
    ),
    "every": (
        *(VALUE, "'auto', 'epoch'.*mean 'epoch'.*Or give a number of steps"),
        lambda: GradientVariance((X, Y), "epochs"),
    ),
    "two_arrays_as_probe": (
        *(
            VALUE,
            "`every` expected a positive integer or one of 'auto', 'epoch'",
        ),
        lambda: GradientVariance(X, Y),
    ),
    # Validation data
    "validation_classes": (
        *(VALUE, "`validation_data`.*`y` from 0 to 2.*from 5 to 7"),
        lambda: value_classes(X, CLASSES + 5),
    ),
    "validation_texts": (
        *(VALUE, f"`validation_data`.*{NO_NUMBERS}"),
        lambda: value_classes(TEXTS, CLASSES),
    ),
    "validation_text_targets": (
        *(VALUE, "`validation_data`.*Number the classes"),
        lambda: value_classes(X, TEXTS[:, 0]),
    ),
    "validation_without_targets": (
        *(VALUE, "`validation_data`.*Expected `y`"),
        lambda: value(X),
    ),
    "validation_nan": (
        *(VALUE, "`validation_data`.*NaN or infinity in x, y or"),
        lambda: value(np.where(X > 1, np.nan, X), Y),
    ),
    "complex_validation": (
        *(VALUE, "`validation_data`.*real numbers as `x`"),
        lambda: value(X + 1j, Y),
    ),
    "validation_shape": (
        *(VALUE, r"`validation_data`.*shape \(None, 4\)"),
        lambda: value(X[:, :2], Y),
    ),
    # A run
    "path_as_name": (VALUE, "which has '/'", lambda: run(run_name="a/b")),
    "no_name": (VALUE, "that is not empty or None", lambda: run(run_name="")),
    "number_as_name": (VALUE, "text that is", lambda: run(run_name=3)),
    "number_as_directory": (
        *(TYPE, r"`log_dir` expected a directory.*log_dir=3"),
        lambda: GradientVariance(log_dir=3),
    ),
    "no_runs": (
        *(TYPE, "a directory or a list of them.*None"),
        lambda: kpg.diagnose.compare_runs(None),
    ),
    "number_of_runs": (
        *(TYPE, "a directory or a list of them.*=3"),
        lambda: kpg.diagnose.compare_runs(3),
    ),
    "listed_number": (TYPE, "=3", lambda: kpg.diagnose.compare_runs([3])),
    "no_run": (TYPE, "of a run.*None", lambda: kpg.runs.read_run(None)),
    "no_directory": (TYPE, "with runs", lambda: kpg.runs.list_runs(3)),
    # Trackers
    "board": (TYPE, "'logs'.*=3", lambda: kpg.trackers.TensorBoard(3)),
    "mlflow": (VALUE, "`experiment` expected", lambda: kpg.trackers.MLflow(3)),
    "mlflow_store": (
        *(TYPE, "`tracking_uri` expected a store"),
        lambda: kpg.trackers.MLflow(tracking_uri=3),
    ),
    "wandb": (VALUE, "`project` expected", lambda: kpg.trackers.WandB(3)),
    "mlflow_run": (TYPE, "its id", lambda: kpg.trackers.MLflow(run=3)),
    "wandb_run": (TYPE, r"id=\.\.\.", lambda: kpg.trackers.WandB(run="id")),
    "tracker_as_callback": (
        *(TYPE, r"GradientVariance\(trackers=\[\.\.\.\]\)"),
        lambda: model().fit(
            X, Y, verbose=0, callbacks=[kpg.trackers.TensorBoard("unused")]
        ),
    ),
    "exported_to_a_class": (
        *(TYPE, "`to` expected a tracker"),
        lambda: kpg.runs.export("unused", to=kpg.trackers.TensorBoard),
    ),
    # Rules
    "no_rule": (
        *(TYPE, r"function\(layer, inputs, dz\)"),
        lambda: kpg.extending.register_rule(keras.layers.Dense)(3),
    ),
    "forward": (
        *(TYPE, "`forward` expected a function or None"),
        lambda: kpg.extending.register_rule(keras.layers.Dense, forward=3),
    ),
    "no_type_rule": (
        *(TYPE, r"function\(op, types\)"),
        lambda: kpg.extending.register_type_rule("Unused")(3),
    ),
    "no_op": (
        *(TYPE, "the types of ops"),
        kpg.extending.register_type_rule,
    ),
    # Influence
    "classes": (
        *(VALUE, r"3 outputs.*`y` from 0 to 2\. Received: from 1 to 3\. Numb"),
        lambda: influence(classifier(), y=CLASSES + 1),
    ),
    "classes_of_tests": (
        *(VALUE, "Received: from 9 to 10"),
        lambda: influence(classifier(), y=CLASSES).scores(
            X[:2], CLASSES[:2] + 9
        ),
    ),
    "classes_of_later_samples": (
        *(VALUE, "Received: from 0 to 3"),
        lambda: influence(classifier(), y=np.r_[CLASSES[:11], 3], batch_size=4),
    ),
    "no_loss": (VALUE, "has no loss", lambda: influence(model(None))),
    "seed": (VALUE, "`seed` expected an int", lambda: influence(seed="a")),
    "texts_of_scores": (
        *(VALUE, NO_NUMBERS),
        lambda: influence().scores(TEXTS, Y),
    ),
    "texts_of_prediction": (VALUE, NO_NUMBERS, lambda: predicting(TEXTS)),
    "one_sample": (
        *(VALUE, "the shape .* of one sample"),
        lambda: influence().scores(X[0], Y[0]),
    ),
    "one_predicted_sample": (
        *(VALUE, "the shape .* of one sample"),
        lambda: predicting(X[0]),
    ),
    "influence_in_a_function": (
        *(VALUE, IN_FUNCTION),
        tf.function(influence, autograph=False),
    ),
    "scores_in_a_function": (
        *(VALUE, IN_FUNCTION),
        lambda: tf.function(influence().scores, autograph=False)(X, Y),
    ),
    "self_influence_in_a_function": (
        *(VALUE, IN_FUNCTION),
        lambda: tf.function(influence().self_influence, autograph=False)(),
    ),
    "fisher_in_a_function": (
        *(VALUE, IN_FUNCTION),
        tf.function(
            lambda: kpg.influence.fisher(classifier(), X), autograph=False
        ),
    ),
    "fisher_classes": (
        *(VALUE, "`y` from 0 to 2. Received: from -1 to 1"),
        lambda: fisher_of(CLASSES - 1),
    ),
    "fisher_classes_of_later_samples": (
        *(VALUE, "Received: from 0 to 3"),
        lambda: fisher_of(np.r_[CLASSES[:11], 3], batch_size=4),
    ),
    "fisher_one_hot": (
        *(VALUE, r"rank \(ndim\)"),
        lambda: fisher_of(np.eye(3)[CLASSES]),
    ),
    "fisher_one_sample": (
        *(VALUE, "the shape .* of one sample"),
        lambda: fisher_of(CLASSES[:4], X[0]),
    ),
    "swapped": (
        *(TYPE, "`model` must be a keras.Model"),
        lambda: Influence(X, Y, model()),
    ),
    "checkpoints": (VALUE, "weights file", lambda: influence(checkpoints=3)),
    "checkpoint": (TYPE, "weights files", lambda: influence(checkpoints=[3])),
    "no_path_of_page": (
        *(TYPE, "`path` expected"),
        lambda: influence().page(X[:2], Y[:2]),
    ),
    **{
        f"class_names_{type(names).__name__}": (
            *(VALUE, "the name of each of 3 classes"),
            lambda names=names: influence(classifier(), y=CLASSES).page(
                "unused.html", X, CLASSES, class_names=names
            ),
        )
        for names in (["a"], "abc", 3)
    },
    "show": (
        *(TYPE, "a function of one sample"),
        lambda: influence().page("unused.html", X, Y, show="image"),
    ),
    "store": (
        *(TYPE, "directory of a store"),
        lambda: influence(curvature="projected").save(3),
    ),
    "loaded_store": (
        *(TYPE, "directory of a store"),
        lambda: Influence.load(model(), "store"),
    ),
    # Arguments of methods
    "of_scores": (
        *(TYPE, r"Influence\.scores\(\) expected arguments among.*outputs=1"),
        lambda: influence().scores(X, outputs=1),
    ),
    "of_epsilon": (
        *(TYPE, r"epsilon\(\) expected arguments among steps"),
        lambda: private().epsilon(epochs=2),
    ),
    "of_to_html": (
        *(TYPE, r"to_html\(\) expected arguments among path"),
        lambda: private().statement().to_html(file="page.html"),
    ),
    # Steps of one's own
    "reader": (TYPE, "`reader` expected an object", lambda: read("x")),
    "number_as_name_of_a_loss": (
        *(VALUE, "`name` expected a text.* or None.*name=3"),
        lambda: named(3),
    ),
    # Audits and statements
    "canaries": (
        *(VALUE, r"10 different rows of the 12 examples.*canaries='all'"),
        lambda: audit(canaries="all"),
    ),
    "canaries_between_rows": (
        *(VALUE, "integers from 0"),
        lambda: audit(canaries=np.arange(11) + 0.5),
    ),
    "training": (
        *(TYPE, r"`training` expected a function\(model, data\)"),
        lambda: audit(training=3),
    ),
    "weights_file": (
        *(TYPE, "`weights_file` expected a file"),
        lambda: private().statement(weights_file=3),
    ),
    # In a tf.function
    **{
        f"{call.__name__}_in_a_function": (
            *(VALUE, IN_FUNCTION),
            lambda call=call, given=given: in_a_function(
                lambda: call(model(), **given)
            )(),
        )
        for call, given in (
            (kpg.explain, {"batch_size": 4}),
            (kpg.diagnose.what_fits, {"memory": "1GB"}),
            (kpg.diagnose.predict_placement, {"x": X, "y": Y}),
        )
    },
    # Pipelines and devices
    "placement_in_evaluate": (
        *(VALUE, "DevicePlacement.*Received: a call of evaluate"),
        lambda: model().evaluate(
            X, Y, verbose=0, callbacks=[kpg.callbacks.DevicePlacement()]
        ),
    ),
    "kernels": (
        *(TYPE, "`kernels_table` expected a dict from ops to lists"),
        lambda: kpg.diagnose.predict_placement(
            model(), X, Y, kernels_table={"MatMul": "float32"}
        ),
    ),
    "no_devices": (
        *(TYPE, "a list of names from: CPU:0"),
        lambda: kpg.diagnose.compare_devices(model(), X, Y, devices=[]),
    ),
    "memory_of_a_list": (
        *(VALUE, "a list of numbers"),
        lambda: kpg.diagnose.what_fits(model(), X.tolist(), Y, memory="1GB"),
    ),
    **{
        f"{call.__name__}_of_a_data_set": (
            *(VALUE, "the arrays of one batch.*Received: a Dataset"),
            lambda call=call, given=given: call(
                model(),
                x=tf.data.Dataset.from_tensor_slices((X, Y)).batch(4),
                **given,
            ),
        )
        for call, given in (
            (kpg.explain, {}),
            (kpg.diagnose.what_fits, {"memory": "1GB"}),
        )
    },
    "memory_of_no_sample": (
        *(VALUE, "at least one sample"),
        lambda: kpg.diagnose.what_fits(model(), X[:0], Y[:0], memory="1GB"),
    ),
    "check_of_no_sample": (
        *(VALUE, "at least one sample"),
        lambda: kpg.check_gradients(model(), X[:0], Y[:0], verbose=0),
    ),
    **{
        f"profile_{data}": (
            *(TYPE, f"`data` expected a data set.*Received: data={data!r}"),
            lambda data=data: kpg.diagnose.profile_pipeline(data),
        )
        for data in (None, 3, "data.npy")
    },
    "profile_one_array": (
        *(VALUE, r"two batches.*Received: 1 in a ndarray\..*batch\(8\)"),
        lambda: kpg.diagnose.profile_pipeline(X),
    ),
    "settings": (
        *(VALUE, "`settings` expected a list.*=3"),
        lambda: kpg.check_gradients(model(), X, Y, settings=3, verbose=0),
    ),
    "device": (
        *(VALUE, "names from: CPU:0.*mean 'CPU:0'"),
        lambda: kpg.diagnose.compare_devices(model(), X, Y, devices="cpu"),
    ),
    "number_of_device": (
        *(TYPE, "a list of names from: CPU:0.*devices=3"),
        lambda: kpg.diagnose.compare_devices(model(), X, Y, devices=3),
    ),
    "texts_as_targets_of_explain": (
        *(VALUE, "Number the classes"),
        lambda: kpg.explain(model(), 12, y="a"),
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_with_the_way_out(name):
    error, match, mistake = MISTAKES[name]
    with pytest.raises(error, match=match):
        mistake()


#: What takes True and False alone, by the arguments' names.
CHECKED = {
    ("histograms", "by_task"): GradientVariance,
    ("advise", "per_batch"): kpg.callbacks.DataStall,
    ("deep", "warn"): kpg.callbacks.DevicePlacement,
    ("helpful",): lambda **given: influence().top(X, Y, **given),
    ("training",): lambda **given: kpg.influence.fisher(
        classifier(), X, **given
    ),
    ("jit_compile",): lambda **given: kpg.explain(model(), **given),
    ("replace", "by_position"): lambda **given: kpg.extending.register_rule(
        keras.layers.Dense, **given
    ),
}
#: What takes 0, 1 or 2 as `verbose`.
VERBOSE = {
    "Influence": lambda **given: influence(**given),
    "fisher": lambda **given: kpg.influence.fisher(classifier(), X, **given),
    "check": lambda **given: kpg.check_gradients(model(), X, Y, **given),
    "DataStall": kpg.callbacks.DataStall,
}


@pytest.mark.parametrize("name", [name for names in CHECKED for name in names])
def test_a_text_is_neither_true_nor_false(name):
    (use,) = (use for names, use in CHECKED.items() if name in names)
    for value in ("no", "", 2, None if name != "jit_compile" else 3):
        with pytest.raises(ValueError, match=f"`{name}` {NO_BOOL}"):
            use(**{name: value})


@pytest.mark.parametrize("name", VERBOSE)
def test_a_text_is_no_verbosity(name):
    for value in ("no", "auto", 3, None):
        with pytest.raises(ValueError, match="`verbose` expected 0, 1 or 2"):
            VERBOSE[name](verbose=value)


def test_numbers_that_are_true_or_false_are_taken():
    stall = kpg.callbacks.DataStall(advise=np.False_, per_batch=1, verbose=True)
    assert (stall.advise, stall.per_batch, stall.verbose) == (False, True, 1)


def test_a_loss_that_layers_add_is_a_loss():
    inputs = keras.Input((4,))
    dense = keras.layers.Dense(3, activity_regularizer="l2")
    made = keras.Model(inputs, dense(inputs))
    made.compile("sgd")
    scores = Influence(made, X, curvature="none", verbose=0)
    assert scores.self_influence().shape == (12,)
