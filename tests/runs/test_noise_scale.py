"""The noise scale of runs: by hand, of known draws, and what is said of it."""

import numpy as np
import pytest

from keras_pergrad.diagnose import compare_runs
from keras_pergrad.runs.noise_scale import jackknife_interval
from tests.runs import made_up

STEPS = 6


def _compare(log_dir, runs, seeds=range(9), *, tags=None):
    """Compare runs, recorded by ‖ḡ‖² and tr Σ of their readings."""
    for k, (squared_norms, traces) in enumerate(runs):
        gradients = np.zeros((len(squared_norms), made_up.SIZE))
        gradients[:, 0] = np.sqrt(squared_norms)
        made_up.write(
            log_dir,
            f"{k}",
            gradients,
            variance=list(traces),
            seed=seeds[k],
            tags={"t": tags[k]} if tags else {},
        )
    return compare_runs(log_dir, by="t" if tags else None)


def _drawn(seed, count=STEPS, least=4.0):
    random = np.random.default_rng(seed)
    return least + random.random(count), 40 + 10 * random.random(count)


def _sums(runs):
    """Return Σ tr Σ and Σ (‖ḡ‖² − tr Σ / n), (R,) each."""
    return np.array(
        [[t.sum(), (s - t / made_up.SAMPLES).sum()] for s, t in runs]
    ).T


def test_it_is_the_ratio_of_the_means_over_seeds(tmp_path):
    """The repeats of a seed count as one, as computed by hand."""
    drawn = [_drawn(k) for k in range(4)]
    (found,) = _compare(tmp_path, drawn, (0, 0, 1, 2)).noise_scales
    traces, squares = _sums(drawn)
    traces = np.array([(traces[0] + traces[1]) / 2, *traces[2:]])
    squares = np.array([(squares[0] + squares[1]) / 2, *squares[2:]])
    assert found.value == pytest.approx(traces.sum() / squares.sum(), rel=1e-9)
    inverses = [
        np.delete(squares, k).sum() / np.delete(traces, k).sum()
        for k in range(3)
    ]
    deviations = np.array(inverses) - np.mean(inverses)
    error = 4.302652729911275 * np.sqrt(2 / 3 * (deviations**2).sum())
    inverse = squares.sum() / traces.sum()
    assert found.low == pytest.approx(1 / (inverse + error), rel=1e-9)
    assert found.high == pytest.approx(1 / (inverse - error), rel=1e-9)
    assert (found.group, found.seeds, found.left_out) == (None, 3, "seeds")
    assert found.readings == 4 * STEPS


def test_each_group_and_each_half_has_its_own(tmp_path):
    drawn = []
    for tag, size in (("a", 0.5), ("b", 1.0)):
        for seed in range(3):
            squares, traces = _drawn([seed, ord(tag)])
            traces[STEPS // 2 :] *= 2
            drawn.append((squares, size * traces))
    comparison = _compare(tmp_path, drawn, (0, 1, 2) * 2, tags="aaabbb")
    for found in comparison.noise_scales:
        runs = drawn[:3] if found.group == "a" else drawn[3:]
        for value, steps in (
            (found.value, slice(None)),
            (found.first_half, slice(0, 3)),
            (found.second_half, slice(3, None)),
        ):
            traces, squares = _sums([(s[steps], t[steps]) for s, t in runs])
            expected = traces.sum() / squares.sum()
            assert value == pytest.approx(expected, rel=1e-9)
        assert found.low < found.value < found.high
    assert [s.group for s in comparison.noise_scales] == ["a", "b"]
    for text in (str(comparison), comparison._repr_html_()):
        assert "Gradient noise scale, in samples" in text
        assert f"{comparison.noise_scales[1].value:.3g} [" in text


def test_one_seed_is_judged_by_blocks_of_readings(tmp_path):
    """Repeats say nothing of the spread."""
    squares, traces = _drawn(0, count=25)
    twice = [(squares, traces)] * 2
    (found,) = _compare(tmp_path, twice, (0, 0)).noise_scales
    true = squares - traces / made_up.SAMPLES
    blocks = [
        [block.sum() for block in np.array_split(values, 10)]
        for values in (traces, true)
    ]
    expected = jackknife_interval(*map(np.array, blocks))
    assert (found.low, found.high) == pytest.approx(expected, rel=1e-9)
    assert found.left_out == "blocks"
    assert found.value == pytest.approx(traces.sum() / true.sum(), rel=1e-9)


def test_one_reading_has_no_interval(tmp_path):
    twice = [_drawn(0, count=1)] * 2
    (found,) = _compare(tmp_path, twice, (0, 0)).noise_scales
    assert found.value > 0
    assert np.isnan([found.low, found.high, found.second_half]).all()


def test_a_gradient_that_is_noise_has_none_and_the_text_says_why(tmp_path):
    noise = [(_drawn(k, least=4.0)[0] / 100, _drawn(k)[1]) for k in range(4)]
    comparison = _compare(tmp_path, noise)
    (found,) = comparison.noise_scales
    assert np.isnan(found.value)
    text = " ".join(str(comparison).split())
    assert "32 samples is not distinguishable from noise" in text
    assert "a larger `probe`" in text
    assert "not distinguishable from noise" in comparison._repr_html_()


def test_an_interval_without_an_end_is_explained(tmp_path):
    runs = [_drawn(0, least=0.5), _drawn(1, least=9.0)]
    comparison = _compare(tmp_path, runs)
    (found,) = comparison.noise_scales
    assert 0 < found.low < found.value < found.high == np.inf
    assert "interval has no upper end" in str(comparison)


def test_readings_that_are_not_finite_are_left_out(tmp_path):
    runs = [_drawn(0), _drawn(1)]
    for squares, traces in runs:
        squares[0], traces[-1] = np.nan, np.inf
    (found,) = _compare(tmp_path, runs).noise_scales
    traces, squares = _sums([(s[1:-1], t[1:-1]) for s, t in runs])
    assert found.value == pytest.approx(traces.sum() / squares.sum(), rel=1e-9)
    assert found.readings == 2 * (STEPS - 2)


@pytest.mark.parametrize("seeds", [3, 5, 12])
@pytest.mark.parametrize("noise_scale", [30.0, 400.0])
@pytest.mark.parametrize("samples", [32, 128])
def test_the_interval_covers_the_truth(seeds, noise_scale, samples):
    """In about 95 % of draws of samples with known tr Σ and ‖G‖².

    The mean of n samples is normal around G, and tr Σ̂ is a sum of chi-squares.
    """
    draws, readings, size, trace = 1000, 20, 50, 8.0
    random = np.random.default_rng(0)
    shape = draws, seeds, readings
    means = random.normal(size=(*shape, size)) * np.sqrt(trace / size / samples)
    means[..., 0] += np.sqrt(trace / noise_scale)
    freedom = size * (samples - 1)
    traces = trace * random.chisquare(freedom, shape) / freedom
    squares = (means**2).sum(-1) - traces / samples
    pairs = zip(traces.sum(2), squares.sum(2))
    low, high = np.transpose([jackknife_interval(*pair) for pair in pairs])
    covered = ((low <= noise_scale) & (noise_scale <= high)).mean()
    assert 0.92 < covered < 0.975
    ratio = traces.mean() / squares.mean()
    assert ratio == pytest.approx(noise_scale, rel=0.05)
