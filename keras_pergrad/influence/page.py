"""A page of test samples with the samples that helped and hurt them."""

import base64
import functools
from html import escape

import numpy as np
import tensorflow as tf

from keras_pergrad.common.batches import first_tensor, map_tensors
from keras_pergrad.common.page import main, whole

_MAX_NUMBERS, _MAX_LETTERS = 12, 400
_LEGEND = (
    ("row", "The sample's position in its data, counted from 0."),
    ("label", "The sample's target, by the name of its class if names exist."),
    (
        "prediction",
        "What the model says of the test sample: the class with the largest "
        "output, or the outputs themselves.",
    ),
)
_STYLE = """<style>.kpg .test{display:flex;flex-wrap:wrap;gap:1rem;
border-top:1px solid var(--rule);padding:1rem 0}
.kpg .group{flex-basis:100%;display:grid;gap:.6rem;
grid-template-columns:repeat(auto-fill,minmax(9rem,1fr))}
.kpg .group h2{grid-column:1/-1;font-size:.9rem;margin:0}
.kpg .test figure{max-width:16rem;padding:.5rem;border-radius:6px;
font-size:.85rem;overflow-wrap:anywhere}
.kpg .helpful figure{border-top:3px solid var(--c3)}
.kpg .harmful figure{border-top:3px solid var(--c2)}
.kpg .test figure p{font-size:.75rem}
.kpg .test img{width:5rem;image-rendering:pixelated;display:block}</style>"""


#: What the groups of training samples are, and did: by the question.
_GROUPS = {
    "loss": (("helpful", "helped it most"), ("harmful", "harmed it most")),
    "prediction": (
        ("for the prediction", "raised its prediction most"),
        ("against the prediction", "lowered it most"),
    ),
}
_RISES = {
    "loss": "the test sample's loss rises",
    "prediction": "log p of the test sample's predicted class, or the output "
    "of a regression, falls",
}
_UNITS = {
    "loss": "in the unit of the loss: nats for a cross-entropy",
    "prediction": "in nats, or in the unit of the output",
}


def score_in_words(curvature, checkpoints, *, of):
    """Say what a score is, its unit, and how far to trust it."""
    if curvature == "none":
        what = (
            f"By how much {_RISES[of]} if the share that the training sample "
            "has in a step of rate 1 is undone"
        )
    else:
        what = f"By how much {_RISES[of]} if the training sample is left out"
    what += f", to first order, {_UNITS[of]}."
    if checkpoints > 1:
        what += f" Added up over {checkpoints} checkpoints."
    return (
        f"{what} Read it as a rank of influence, not as a promised change: a "
        "large one is a slope, carried on in a straight line."
    )


def render_page(tests, train, *, best, worst, class_names, show, of, score):
    """Return the HTML of a page.

    Args:
        tests: (x, y, the model's outputs) by row.
        train: (x, y, weight) by row.
        best, worst: two `Top`s.
        class_names, show, of: as for `Influence.page`.
        score: what a score is, in words.
    """
    count = len(best.samples)
    legend = (*_LEGEND, ("score", score))
    (helpful, raised), (harmful, lowered) = _GROUPS[of]
    make_figure = functools.partial(
        _figure_html, class_names=class_names, show=show
    )
    parts = [
        "<h1>Which samples matter</h1>",
        f'<p class="muted">{count} test sample{"s" * (count > 1)}, each with '
        f"the training samples that {raised} (positive scores) and {lowered} "
        "(negative scores).</p>",
        "<dl>",
        *[f"<dt>{k}</dt><dd>{escape(text)}</dd>" for k, text in legend],
        "</dl>",
    ]
    for t in range(count):
        _, y, outputs = tests[t]
        prediction = _prediction_html(outputs, y, class_names)
        test = make_figure(tests, t, prediction)
        groups = [_group_html("test sample", "test-sample", [test])]
        for title, kind, top, sign in (
            (helpful, "helpful", best, 1),
            (harmful, "harmful", worst, -1),
        ):
            figures = [
                make_figure(train, j, f" · score {value:+.2g}")
                for j, value in zip(top.samples[t], top.scores[t])
                if sign * value > 0
            ]
            groups.append(_group_html(title, kind, figures))
        parts.append(f'<div class="test">{"".join(groups)}</div>')
    return whole("Which samples matter", main(parts), _STYLE)


def _group_html(title, kind, figures):
    content = "".join(figures) or '<p class="muted">none</p>'
    return f'<div class="group {kind}"><h2>{escape(title)}</h2>{content}</div>'


def _figure_html(data, row, note, *, class_names, show):
    x, y, _ = data[row]
    target = "" if y is None else f" · label {target_html(y, class_names)}"
    return (
        f"<figure>{sample_html(x, show)}"
        f'<p class="muted">row {row}{target}{note}</p></figure>'
    )


def _prediction_html(output, y, class_names):
    first, *others = tf.nest.flatten(output)
    if (
        not others
        and first.ndim == 1
        and first.size > 1
        and (class_names is not None or _is_class(y, first))
    ):
        words = target_html(first.argmax(), class_names)
    else:
        words = target_html([first, *others])
    return f" · prediction {words}"


def _is_class(y, output):
    """Whether a target counts or marks one of the outputs."""
    if y is None or tf.nest.is_nested(y):
        return False
    y = np.asarray(y)
    return y.size == 1 or (y.shape == output.shape and y.sum() == y.max() == 1)


def samples_by_row(batches, rows):
    """Return what batches of several parts have of some rows, by number."""
    requested, samples, first = set(map(int, rows)), {}, 0
    for batch in batches:
        n = len(first_tensor(batch))
        for row in requested.intersection(range(first, first + n)):
            samples[row] = map_tensors(
                lambda a, place=row - first: np.asarray(a[place]), batch
            )
        first += n
    return samples


def sample_html(sample, show=None):
    """Return HTML of a sample: what `show` makes of it, or itself.

    Arrays (height, width), or with 1 or 3 channels, of at least 4 × 4 are
    images; others are numbers.
    """
    content = sample if show is None else show(sample)
    if isinstance(content, (str, bytes)):
        return _text_html(content)
    if isinstance(content, dict):
        return "<br>".join(
            f"{escape(str(name))}: {sample_html(part)}"
            for name, part in content.items()
        )
    if isinstance(content, (list, tuple)) and any(np.ndim(s) for s in content):
        return "<br>".join(sample_html(part) for part in content)
    array = np.asarray(content)
    if array.ndim == 0 and array.dtype.kind in "OSU":
        return _text_html(array.item())
    if array.ndim == 1 and array.dtype.kind in "OSU":
        return _text_html(" ".join(map(str, array.tolist())))
    if _is_image(array):
        return _image_html(array)
    return escape(_format_numbers(array.ravel()))


def target_html(value, class_names=None):
    """Return a target in words: a class's name, or numbers; or several."""
    if tf.nest.is_nested(value):
        return ", ".join(target_html(part) for part in tf.nest.flatten(value))
    array = np.asarray(value)
    if array.ndim == 1 and array.size > 1 and set(np.unique(array)) <= {0, 1}:
        array = np.asarray(array.argmax())  # one-hot
    if array.size == 1:
        number = array.ravel()[0]
        if class_names is not None:
            return escape(str(class_names[int(number)]))
        return escape(
            f"{number:g}" if array.dtype.kind in "iuf" else f"{number}"
        )
    return escape(_format_numbers(array.ravel()))


def _text_html(text):
    text = text.decode(errors="replace") if isinstance(text, bytes) else text
    ellipsis = "…" if len(text) > _MAX_LETTERS else ""
    return escape(text[:_MAX_LETTERS]) + ellipsis


def _format_numbers(array):
    ellipsis = " …" if array.size > _MAX_NUMBERS else ""
    return " ".join(f"{v:.4g}" for v in array[:_MAX_NUMBERS]) + ellipsis


def _is_image(array):
    sizes = array.shape
    if array.dtype.kind not in "biuf" or len(sizes) not in (2, 3):
        return False
    channels = sizes[2] if len(sizes) == 3 else 1
    return min(sizes[:2]) >= 4 and channels in (1, 3)


def _image_html(array):
    """Return an <img> of an array, from its least to its largest value."""
    array = np.nan_to_num(array.astype("float64"))
    low, high = array.min(), array.max()
    array = (array - low) / ((high - low) or 1) * 255
    array = array.reshape(*array.shape[:2], -1).astype("uint8")
    data = base64.b64encode(tf.io.encode_png(array).numpy()).decode()
    return f'<img alt="" src="data:image/png;base64,{data}">'
