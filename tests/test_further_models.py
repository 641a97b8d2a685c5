"""Further models: proved, and exact against single samples on a tape."""

import keras
import numpy as np
import pytest

import keras_pergrad as kpg
from tests import oracle
from tests.further import oracle as single
from tests.further.all_kinds import KINDS, SLOW
from tests.further.refused import REFUSED
from tests.further.tasks import N
from tests.marks import few

pytestmark = [
    # Of attention layers that drop the mask they are given.
    pytest.mark.filterwarnings("ignore:.*does not support masking"),
    # Of a part of Flux without a method `build`.
    pytest.mark.filterwarnings("ignore:.*was called on layer"),
]
#: Layers for strings, of which the package knows that samples stay apart.
STRINGS = (keras.layers.TextVectorization, keras.layers.HashedCrossing)


def _made(kind):
    keras.config.set_floatx(kind.dtype)
    keras.config.set_dtype_policy(kind.dtype)
    if not kind.group.startswith("hub"):
        return kind.make()
    hub = pytest.importorskip("keras_hub")
    try:
        return kind.make()
    except (AttributeError, ImportError) as error:
        if tuple(map(int, hub.__version__.split(".")[:2])) >= (0, 32):
            raise
        pytest.skip(f"keras-hub {hub.__version__}: {error}")


@pytest.mark.parametrize(
    "name", few(KINDS, KINDS.keys() - SLOW, sorted(SLOW)[::3])
)
def test_samples_are_proved_apart_and_exact(name):
    kind = KINDS[name]
    model, x, y = _made(kind)
    found = kpg.per_sample_gradients(model, x, y)
    expected = single.one_by_one(model, x, y, draws=kind.draws)
    oracle.assert_agree(found, expected)
    assert max(np.abs(g).max() for g in expected if g is not None) > 1e-3
    table = kpg.explain(model, N, x=x)
    assert table.verdict == ("vouched" if kind.known else "proved"), table
    layers = {model.get_layer(v.layer) for v in table.vouched}
    assert all(isinstance(layer, STRINGS) for layer in layers)


@pytest.mark.parametrize("mode", ["per_sample", "accumulated", "private"])
@pytest.mark.parametrize("name", ["handwriting_ctc", "graph_attention"])
def test_other_modes_serve_them(name, mode):
    model, x, y = _made(KINDS[name])
    loss = model.loss
    model = kpg.PerGradModel.from_model(model)
    if mode == "private":
        private = kpg.PrivateTraining(
            noise_multiplier=1.0,
            delta=1e-2,
            samples=N,
            batch_size=N,
            seed=1,
            user_ids="unique",
            epochs=1,
        )
        model.compile("sgd", loss, gradient_mode=private.gradient_mode)
        data = private.batches(x, y)
        model.fit(data, callbacks=[private.callback], verbose=0)
        return
    if mode == "accumulated":
        mode = kpg.Accumulated(microbatch_size=2)
    model.compile("sgd", loss, gradient_mode=mode)
    model.fit(x, y, verbose=0)


@pytest.mark.parametrize("case", REFUSED, ids=[r.name for r in REFUSED])
def test_other_parts_are_refused(case):
    if case.hub:
        pytest.importorskip("keras_hub")
    model, x, y = case.make()
    with pytest.raises(ValueError, match=case.message):
        kpg.per_sample_gradients(model, x, y)


def test_there_are_many_kinds():
    assert len(KINDS) >= 130
    assert set(SLOW) <= set(KINDS)
