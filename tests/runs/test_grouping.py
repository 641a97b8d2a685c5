import numpy as np
import pytest

from keras_pergrad.runs.grouping import Grouping, group_labels, short_names


def test_repeats_share_seed_and_setting():
    base = {"seed": 1, "device": "CPU", "machine": "m"}
    infos = [
        base,
        base,
        {**base, "device": "GPU"},
        {**base, "seed": 2},
        {**base, "seed": None},
        {**base, "seed": None},
        {**base, "optimizer": {"learning_rate": 0.1}},
        {**base, "versions": {"tensorflow": "2.18.1", "python": "3.12"}},
    ]
    related = Grouping(infos)
    repeats = np.zeros((8, 8), bool)
    repeats[0, 1] = repeats[1, 0] = True
    np.testing.assert_array_equal(related.repeats, repeats)
    # Runs of unknown seed are independent of all, also of each other.
    independent = related.independent
    assert independent[4].sum() == independent[5].sum() == 7
    assert not independent[0, [0, 1, 2, 6, 7]].any()
    np.testing.assert_array_equal(related.has_seed, [1, 1, 1, 1, 0, 0, 1, 1])


TRAINED = {
    "loss": [{"loss": "mean_squared_error"}],
    "precision": "float32",
    "jit_compile": False,
    "run_eagerly": False,
    "op_determinism": False,
    "batch_size": 16,
    "steps_per_epoch": 10,
}


@pytest.mark.parametrize("name", TRAINED)
def test_another_way_of_training_is_no_repeat(name):
    base = {"seed": 1, **TRAINED}
    related = Grouping([base, base, {**base, name: 9}])
    assert related.repeats[0, 1]
    assert not related.repeats[2].any()
    assert related.always_differ([0, 1], [2]) == [name]
    # An older record does not know.
    old = {k: v for k, v in base.items() if k != name}
    related = Grouping([base, old, old])
    assert not related.repeats[0].any()
    assert related.repeats[1, 2]
    assert related.always_differ([0], [1, 2]) == []


def test_a_group_parts_repeats_and_a_second_optimizer_does_not():
    infos = [{"seed": 1, "tags": {"op": op}} for op in ("old", "new", "new")]
    related = Grouping(infos, by="op")
    assert related.groups == ["old", "new", "new"]
    assert related.repeats.sum() == 2
    infos = [
        {"seed": 1, "optimizer": {"class": "Adam", "name": name, "rate": 0.1}}
        for name in ("adam", "adam_1")  # as Keras names the second one
    ]
    assert Grouping(infos).repeats[0, 1]


def test_labels_by_tag_and_field():
    mode = {"class": "Vectorized", "aggregation": {"class": "Mean"}}
    infos = [
        {"seed": 3, "tags": {"lr": 0.1}, "gradient_mode": mode},
        {"seed": None, "tags": {}, "gradient_mode": None},
    ]
    assert group_labels(infos, "lr") == ["lr 0.1", "(none)"]
    assert group_labels(infos, "seed") == ["seed 3", "(none)"]
    assert group_labels(infos, "mode") == ["Vectorized", "(none)"]
    with pytest.raises(
        ValueError, match=r"expected one of 'lr', 'device'.*'wrong'"
    ):
        group_labels(infos, "wrong")


def test_runs_are_named_by_what_tells_them_apart():
    for seeds, names in (
        ((1, 2), ["seed 1", "seed 2"]),
        ((1, 1, None), ["seed 1", "seed 1 (2)", "no seed"]),
        ((1, 1), ["seed 1", "seed 1 (2)"]),
    ):
        assert short_names([{"seed": seed} for seed in seeds]) == names
    tags = [{"seed": 1, "tags": {"op": op, "of": "a"}} for op in ("old", "new")]
    assert short_names(tags) == ["old", "new"]
    devices = [{"seed": 1, "device": d} for d in ("CPU", "GPU")]
    assert short_names(devices) == ["CPU", "GPU"]
    # What the seed tells already is not said twice.
    devices[1]["seed"] = 2
    assert short_names(devices) == ["seed 1", "seed 2"]
    rates = [{"seed": s, "tags": {"lr": r}} for s in (1, 2) for r in (1, 2)]
    assert short_names(rates)[1:3] == ["seed 1 · lr 2", "seed 2 · lr 1"]
    sizes = [{"seed": 1, "batch_size": size} for size in (8, 16)]
    assert short_names(sizes) == ["batch_size 8", "batch_size 16"]
