"""The report against the stand-in plugin's own counters."""

import pytest

from tests.metal_stub import session

pytestmark = pytest.mark.slow

CHECKS = "tests.placement.report_checks"
MODELS = ("dense", "cnn", "rnn", "embedding", "attention")


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    return session.run_once(tmp_path_factory, f"{CHECKS}:small", *MODELS)


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    return session.run_once(tmp_path_factory, f"{CHECKS}:settings")


LOOPS = "rnn"


@pytest.mark.parametrize("model", sorted({*MODELS} - {LOOPS}))
def test_kernels_and_copies_are_counted_as_the_plugin_counts_them(
    reports, model
):
    found = reports[model]
    assert found["truth"]["AddV2"] > 0
    assert found["counts"] == found["truth"]
    assert found["wrong_memory"] == 0
    assert found["copies"] == found["copies_truth"]
    assert found["logs"]["device_copies"] == sum(found["copies_truth"])


def test_what_is_in_a_loop_is_left_open(reports):
    found = reports[LOOPS]
    assert set(found["counts"]) == set(found["truth"])
    assert found["counts"]["Tanh"] is None
    known = {op: n for op, n in found["counts"].items() if n is not None}
    assert len(known) >= 5
    assert known == {op: found["truth"][op] for op in known}


@pytest.mark.parametrize("model", MODELS)
def test_variables_live_on_the_device(reports, model):
    device = f"{session.device_type()}:0"
    assert list(reports[model]["variables"]) == [device]
    assert (reports[model]["device"], reports[model]["platform"]) == (
        device,
        "Metal",
    )


def test_fallbacks_name_op_reason_and_layer(reports):
    rows = {row[0]: row[1:] for row in reports["attention"]["fallbacks"]}
    why, number, layers = rows["Einsum"]
    assert why == "no Metal kernel"
    assert number == 6
    assert layers == ["self_attention/multi_head_attention"]
    why, _, layers = rows["AddV2"]
    assert why == "no Metal kernel for int64 (only float32, int32)"
    assert layers == ["optimizer"]
    assert rows["IteratorGetNext"][0] == "host-only op"


@pytest.mark.parametrize("model", MODELS)
def test_deep_figures_are_the_plugins(reports, model):
    measured, truth, extra_runs = reports[model]["replayed"]
    assert measured == truth
    # Host kernels of the same name (int32) come on top, never below.
    assert min(extra_runs.values()) == 0
    deep = reports[model]["deep"]
    assert deep["bytes_to_device"] > 0 < deep["bytes_to_host"]
    assert deep["step_ms"] > 0 < deep["cpu_step_ms"]
    assert deep["fallback_ms"] > 0
    assert "step time" in reports[model]["text"]


def test_known_hazards_are_listed(reports):
    assert reports["dense"]["hazards"] == ["int64_counter", "fused_activation"]
    assert reports["cnn"]["hazards"] == ["int64_counter", "fused_activation"]
    assert reports["rnn"]["hazards"] == ["int64_counter"]


def test_text_fits_a_screen(reports):
    for found in reports.values():
        assert max(map(len, found["text"].splitlines())) <= 80


@pytest.mark.parametrize("ops", ["MatMul,Mul,Relu", "BiasAdd,Sub"])
def test_other_fallbacks_change_the_report(reports, ops):
    found = session.run(f"{CHECKS}:plain", "dense", "cnn", DISABLE_OPS=ops)
    for model, result in found.items():
        assert result["counts"] == result["truth"]
        assert result["copies"] == result["copies_truth"]
        rows = {row[0] for row in result["fallbacks"]}
        assert rows.issuperset(ops.split(","))
        assert not set(ops.split(",")).intersection(result["truth"])
        assert (
            result["logs"]["ops_on_cpu"]
            > (reports[model]["logs"]["ops_on_cpu"])
        )


def test_a_function_placed_by_an_earlier_fit_is_placed_again(settings):
    found = settings["earlier fit"]
    assert found["counts"] == found["truth"]
    assert found["copies"] == found["copies_truth"]


def test_steps_per_execution_counts_one_step(settings):
    found = settings["steps"]
    found["truth"].pop("LogicalAnd")  # the loop over steps asks for more
    found["counts"].pop("LogicalAnd")
    assert {op: 2 * n for op, n in found["counts"].items()} == found["truth"]
    assert "device_copies" not in found["logs"]
    assert "steps_per_execution=2" in found["text"]


def test_xla_on_metal_is_announced_and_leaves_nothing_patched(settings):
    error, hazards, function = settings["xla"]
    assert error is not None
    assert hazards == ["xla"]
    assert function == "function"


def test_no_wrapper_stays(reports, settings):
    assert all(found["restored"] for found in reports.values())
    assert settings["steps"]["restored"]


@pytest.fixture(scope="module")
def modes(tmp_path_factory):
    check = "tests.placement.mode_checks:modes"
    return session.run_once(tmp_path_factory, check)


@pytest.mark.parametrize("mode", ["batch", "vectorized"])
def test_a_step_without_loops_is_counted_as_the_plugin_counts_it(modes, mode):
    assert modes[mode]["counts"] == modes[mode]["truth"]
    assert modes[mode]["copies"] == modes[mode]["copies_truth"]


@pytest.mark.parametrize(
    ("mode", "least"),
    [
        ("clipped", 10),
        ("per_sample", 5),
        ("accumulated", 5),
        ("accumulated, clipped", 6),
    ],
)
def test_what_stands_in_a_loop_or_branch_is_left_open(modes, mode, least):
    """Samples, microbatches, or a check that may stop the step."""
    counts, truth = (modes[mode][k] for k in ("counts", "truth"))
    known = {op: n for op, n in counts.items() if n is not None}
    assert len(known) >= least
    assert known == {op: truth[op] for op in known}


@pytest.mark.parametrize(
    "mode",
    [
        "clipped",
        "per_sample",
        "accumulated",
        "accumulated, clipped",
        "accumulated over steps",
    ],
)
def test_a_run_counts_what_stands_in_loops_and_branches(modes, mode):
    """What `deep=True` reads from a traced run of the step."""
    measured, truth, extra_runs = modes[mode]["replayed"]
    assert measured == truth
    assert min(extra_runs.values()) == 0


def test_reasons_name_the_type_that_has_no_kernel(modes):
    rows = {row[0]: row[1] for row in modes["accumulated"]["fallbacks"]}
    assert rows["GatherV2"] == "no Metal kernel for int32 (only float32)"
