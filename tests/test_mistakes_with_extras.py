"""What newcomers get wrong with the extras, and what they are told."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests.mistakes import CLASSES, TEXTS, X, Y, each
from tests.models.making import compiled, net, unchanged

NO_BOOL = "expected True or False"
NO_NUMBERS = "expected numbers as `x`.*StringLookup"
IN_FUNCTION = "Expected a call outside of it"
GradientVariance = kpg.callbacks.GradientVariance
Influence = kpg.influence.Influence
diagnose, extending = kpg.diagnose, kpg.extending
runs, trackers = kpg.runs, kpg.trackers


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
    """Return what makes the call inside of a `tf.function`."""
    return lambda: tf.function(call, autograph=False)()


BATCHES = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)


def run(**arguments):
    return GradientVariance(log_dir="unused", **arguments)


#: What a TypeError says → the mistake, or several.
TYPE_ERRORS = {
    # A run
    r"`log_dir` expected a directory.*log_dir=3": lambda: GradientVariance(
        log_dir=3
    ),
    "a directory or a list of them.*None": lambda: diagnose.compare_runs(None),
    "a directory or a list of them.*=3": lambda: diagnose.compare_runs(3),
    "=3": lambda: diagnose.compare_runs([3]),
    "of a run.*None": lambda: runs.read_run(None),
    "with runs": lambda: runs.list_runs(3),
    # Trackers
    "'logs'.*=3": lambda: trackers.TensorBoard(3),
    "`tracking_uri` expected a store": lambda: trackers.MLflow(tracking_uri=3),
    "its id": lambda: trackers.MLflow(run=3),
    r"id=\.\.\.": lambda: trackers.WandB(run="id"),
    r"GradientVariance\(trackers=\[\.\.\.\]\)": lambda: model().fit(
        X, Y, verbose=0, callbacks=[trackers.TensorBoard("unused")]
    ),
    "`to` expected a tracker": lambda: runs.export(
        "unused", to=trackers.TensorBoard
    ),
    # Rules
    r"function\(layer, inputs, dz\)": lambda: extending.register_rule(
        keras.layers.Dense
    )(3),
    "`forward` expected a function or None": lambda: extending.register_rule(
        keras.layers.Dense, forward=3
    ),
    r"function\(op, types\)": lambda: extending.register_type_rule("Unused")(3),
    "the types of ops": extending.register_type_rule,
    # Influence
    "`model` must be a keras.Model": lambda: Influence(X, Y, model()),
    "weights files": lambda: influence(checkpoints=[3]),
    "`path` expected": lambda: influence().page(X[:2], Y[:2]),
    "a function of one sample": lambda: influence().page(
        "unused.html", X, Y, show="image"
    ),
    "directory of a store": [
        lambda: influence(curvature="projected").save(3),
        lambda: Influence.load(model(), "store"),
    ],
    # Arguments of methods
    r"Influence\.scores\(\) expected arguments among.*outputs=1": lambda: (
        influence().scores(X, outputs=1)
    ),
    r"epsilon\(\) expected arguments among steps": lambda: private().epsilon(
        epochs=2
    ),
    r"to_html\(\) expected arguments among path": lambda: (
        private().statement().to_html(file="page.html")
    ),
    # Steps of one's own
    "`reader` expected an object": lambda: read("x"),
    # Audits and statements
    r"`training` expected a function\(model, data\)": lambda: audit(training=3),
    "`weights_file` expected a file": lambda: private().statement(
        weights_file=3
    ),
    # Pipelines and devices
    "`kernels_table` expected a dict from ops to lists": lambda: (
        diagnose.predict_placement(
            model(), X, Y, kernels_table={"MatMul": "float32"}
        )
    ),
    "a list of names from: CPU:0": lambda: diagnose.compare_devices(
        model(), X, Y, devices=[]
    ),
    "a list of names from: CPU:0.*devices=3": lambda: diagnose.compare_devices(
        model(), X, Y, devices=3
    ),
    **{
        f"`data` expected a data set.*Received: data={data!r}": (
            lambda data=data: diagnose.profile_pipeline(data)
        )
        for data in (None, 3, "data.npy")
    },
}
#: Likewise a ValueError.
VALUE_ERRORS = {
    # A probe
    f"`probe`.*{NO_NUMBERS}": lambda: watch(TEXTS, Y),
    "`probe`.*Number the classes": lambda: watch(
        X, TEXTS[:, 0], made=classifier(), y=CLASSES
    ),
    r"a list of texts.*numpy\.asarray\(x\)": lambda: GradientVariance(
        (TEXTS.tolist(), Y)
    ),
    r"`probe`.*\[0, 3\).*from 0 to the number of outputs": lambda: watch(
        X, CLASSES + 5, made=classifier(), y=CLASSES
    ),
    "`probe`.*Expected `y`": lambda: watch(X),
    "`sample_weight` expected an array of real numbers": lambda: (
        GradientVariance((X, Y, TEXTS[:, 0]))
    ),
    "'auto', 'epoch'.*mean 'epoch'.*Or give a number of steps": lambda: (
        GradientVariance((X, Y), "epochs")
    ),
    "`every` expected a positive integer or one of 'auto', 'epoch'": lambda: (
        GradientVariance(X, Y)
    ),
    # Validation data
    "`validation_data`.*`y` from 0 to 2.*from 5 to 7": lambda: value_classes(
        X, CLASSES + 5
    ),
    f"`validation_data`.*{NO_NUMBERS}": lambda: value_classes(TEXTS, CLASSES),
    "`validation_data`.*Number the classes": lambda: value_classes(
        X, TEXTS[:, 0]
    ),
    "`validation_data`.*Expected `y`": lambda: value(X),
    "`validation_data`.*NaN or infinity in x, y or": lambda: value(
        np.where(X > 1, np.nan, X), Y
    ),
    "`validation_data`.*real numbers as `x`": lambda: value(X + 1j, Y),
    r"`validation_data`.*shape \(None, 4\)": lambda: value(X[:, :2], Y),
    # A run
    "which has '/'": lambda: run(run_name="a/b"),
    "that is not empty or None": lambda: run(run_name=""),
    "text that is": lambda: run(run_name=3),
    # Trackers
    "`experiment` expected": lambda: trackers.MLflow(3),
    "`project` expected": lambda: trackers.WandB(3),
    # Influence
    r"3 outputs.*`y` from 0 to 2\. Received: from 1 to 3\. Numb": lambda: (
        influence(classifier(), y=CLASSES + 1)
    ),
    "Received: from 9 to 10": lambda: influence(classifier(), y=CLASSES).scores(
        X[:2], CLASSES[:2] + 9
    ),
    "Received: from 0 to 3": [
        lambda: influence(classifier(), y=np.r_[CLASSES[:11], 3], batch_size=4),
        lambda: fisher_of(np.r_[CLASSES[:11], 3], batch_size=4),
    ],
    "has no loss": lambda: influence(model(None)),
    "`seed` expected an int": lambda: influence(seed="a"),
    NO_NUMBERS: [
        lambda: influence().scores(TEXTS, Y),
        lambda: predicting(TEXTS),
    ],
    "the shape .* of one sample": [
        lambda: influence().scores(X[0], Y[0]),
        lambda: predicting(X[0]),
        lambda: fisher_of(CLASSES[:4], X[0]),
    ],
    IN_FUNCTION: [
        in_a_function(influence),
        in_a_function(lambda: kpg.influence.fisher(classifier(), X)),
        in_a_function(lambda: kpg.explain(model(), batch_size=4)),
        in_a_function(lambda: diagnose.what_fits(model(), memory="1GB")),
        in_a_function(lambda: diagnose.predict_placement(model(), X, Y)),
        lambda: tf.function(influence().scores, autograph=False)(X, Y),
        lambda: tf.function(influence().self_influence, autograph=False)(),
    ],
    "`y` from 0 to 2. Received: from -1 to 1": lambda: fisher_of(CLASSES - 1),
    r"rank \(ndim\)": lambda: fisher_of(np.eye(3)[CLASSES]),
    "weights file": lambda: influence(checkpoints=3),
    "the name of each of 3 classes": [
        lambda names=names: influence(classifier(), y=CLASSES).page(
            "unused.html", X, CLASSES, class_names=names
        )
        for names in (["a"], "abc", 3)
    ],
    # Steps of one's own
    "`name` expected a text.* or None.*name=3": lambda: named(3),
    # Audits and statements
    r"10 different rows of the 12 examples.*canaries='all'": lambda: audit(
        canaries="all"
    ),
    "integers from 0": lambda: audit(canaries=np.arange(11) + 0.5),
    # Pipelines and devices
    "DevicePlacement.*Received: a call of evaluate": lambda: model().evaluate(
        X, Y, verbose=0, callbacks=[kpg.callbacks.DevicePlacement()]
    ),
    "the arrays of one batch.*Received: a Dataset": [
        lambda: kpg.explain(model(), x=BATCHES),
        lambda: diagnose.what_fits(model(), x=BATCHES, memory="1GB"),
    ],
    "a list of numbers": lambda: diagnose.what_fits(
        model(), X.tolist(), Y, memory="1GB"
    ),
    "at least one sample": [
        lambda: diagnose.what_fits(model(), X[:0], Y[:0], memory="1GB"),
        lambda: kpg.check_gradients(model(), X[:0], Y[:0], verbose=0),
    ],
    r"two batches.*Received: 1 in a ndarray\..*batch\(8\)": lambda: (
        diagnose.profile_pipeline(X)
    ),
    "`settings` expected a list.*=3": lambda: kpg.check_gradients(
        model(), X, Y, settings=3, verbose=0
    ),
    "names from: CPU:0.*mean 'CPU:0'": lambda: diagnose.compare_devices(
        model(), X, Y, devices="cpu"
    ),
    "Number the classes": lambda: kpg.explain(model(), 12, y="a"),
}


@each({TypeError: TYPE_ERRORS, ValueError: VALUE_ERRORS})
def test_a_mistake_is_told_with_the_way_out(error, match, mistake):
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
    ("replace", "by_position"): lambda **given: extending.register_rule(
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
