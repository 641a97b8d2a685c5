"""The report against the stand-in plugin's own counters."""

import pytest

from tests.metal_stub import session

pytestmark = pytest.mark.slow

CHECKS = "tests.placement.stand_in_checks"
MODELS = ("dense", "cnn", "rnn", "embedding", "attention")


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    return session.run_once(tmp_path_factory, f"{CHECKS}:small", *MODELS)


def assert_counted(found, alike=None):
    """Assert that the plugin has counted as many kernels and copies.

    Args:
        found: what `watch` returns.
        alike: if not None, some kernels stand in loops or branches; of this
            many types at least none does.
    """
    counts, truth = found["counts"], found["truth"]
    if alike is None:
        assert counts == truth
        assert found["copies"] == found["copies_truth"]
        return
    assert set(truth) <= set(counts)
    assert sum(counts[op] == truth[op] for op in truth) >= alike


def assert_deep_figures_are_the_plugins(found):
    """What `deep=True` reads from a traced run of the step."""
    measured, truth, extra_runs = found["replayed"]
    assert measured == truth
    # Host kernels of the same name (int32) come on top, never below.
    assert min(extra_runs.values()) == 0


@pytest.mark.parametrize("model", MODELS)
def test_a_report_is_what_the_plugin_counts(reports, model):
    found, device = reports[model], f"{session.device_type()}:0"
    assert list(found["variables"]) == [device]
    assert (found["device"], found["platform"]) == (device, "Metal")
    if model == "rnn":  # it has a loop
        assert_counted(found, alike=5)
        assert set(found["counts"]) == set(found["truth"])
        assert found["counts"]["Tanh"] < found["truth"]["Tanh"]
    else:
        assert_counted(found)
        assert found["truth"]["AddV2"] > 0
        assert found["wrong_memory"] == 0
        assert found["logs"]["device_copies"] == sum(found["copies_truth"])
    assert_deep_figures_are_the_plugins(found)
    deep = found["deep"]
    assert deep["bytes_to_device"] > 0 < deep["bytes_to_host"]
    assert deep["step_ms"] > 0 < deep["cpu_step_ms"]
    assert deep["fallback_ms"] > 0
    assert "step time" in found["text"]
    assert max(map(len, found["text"].splitlines())) <= 80
    assert found["restored"]


def test_fallbacks_name_op_reason_and_layer_and_hazards_are_listed(reports):
    rows = {row[0]: row[1:] for row in reports["attention"]["fallbacks"]}
    why, number, layers = rows["Einsum"]
    assert why == "no Metal kernel"
    assert number == 6
    assert layers == ["self_attention/multi_head_attention"]
    why, _, layers = rows["AddV2"]
    assert why == "no Metal kernel for int64 (only float32, int32)"
    assert layers == ["optimizer"]
    assert rows["IteratorGetNext"][0] == "host-only op"
    hazards = ["int64_counter", "fused_activation"]
    assert reports["dense"]["hazards"] == reports["cnn"]["hazards"] == hazards
    assert reports["rnn"]["hazards"] == hazards[:1]


@pytest.mark.parametrize("ops", ["MatMul,Mul,Relu", "BiasAdd,Sub"])
def test_other_fallbacks_change_the_report(reports, ops):
    found = session.run(f"{CHECKS}:plain", "dense", "cnn", DISABLE_OPS=ops)
    for model, result in found.items():
        assert_counted(result)
        rows = {row[0] for row in result["fallbacks"]}
        assert rows.issuperset(ops.split(","))
        assert not set(ops.split(",")).intersection(result["truth"])
        before = reports[model]["logs"]["ops_on_cpu"]
        assert result["logs"]["ops_on_cpu"] > before


def test_settings_that_change_how_a_step_is_built():
    settings = session.run(f"{CHECKS}:settings")
    # A function that an earlier fit placed is placed again.
    assert_counted(settings["earlier fit"])
    found = settings["steps"]
    found["truth"].pop("LogicalAnd")  # the loop over steps asks for more
    found["counts"].pop("LogicalAnd")
    assert {op: 2 * n for op, n in found["counts"].items()} == found["truth"]
    assert "steps_per_execution=2" in found["text"]
    assert found["restored"]
    # XLA on Metal is announced, and nothing stays patched.
    error, hazards, function = settings["xla"]
    assert error is not None
    assert (hazards, function) == (["xla"], "function")


@pytest.fixture(scope="module")
def modes(tmp_path_factory):
    return session.run_once(tmp_path_factory, f"{CHECKS}:modes")


@pytest.mark.parametrize(
    ("mode", "alike"),
    [
        # Samples, microbatches, or a check that may stop the step.
        ("clipped", 10),
        ("per_sample", 3),
        ("accumulated", 5),
        ("accumulated, clipped", 6),
        ("accumulated over steps", 0),
        ("batch", None),
        ("vectorized", None),
    ],
)
def test_steps_of_every_mode_are_counted(modes, mode, alike):
    assert_counted(modes[mode], alike)
    assert_deep_figures_are_the_plugins(modes[mode])


def test_reasons_name_the_type_that_has_no_kernel(modes):
    rows = {row[0]: row[1] for row in modes["accumulated"]["fallbacks"]}
    assert rows["GatherV2"] == "no Metal kernel for int32 (only float32)"
