"""Writes into the pages what benchmarks have measured.

    python docs/make_figures.py
    python docs/make_figures.py --check

A figure stands between `<!-- figure NAME -->` and `<!-- end -->`. Or all the
numbers of a paragraph are figures: a line before it names them in their order,
`<!-- figures: NAME; NAME -->`. NAME is a key of `computed()`, or the path of a
number in a file of benchmarks/results/ and its format:
`results/clipped/embed/ours@64/ratio/0 .2f`. Benchmarks write these files, but
for `figures.json`, which has what was measured elsewhere.
"""

import functools
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).parents[1]
MARK = re.compile(
    r"(?P<start><!-- figure (?P<name>[^>]+) -->)"
    r"(?P<text>(?:(?!<!--).)*)<!-- end -->",
    re.DOTALL,
)
PARAGRAPH = re.compile(
    r"(?P<start><!-- figures: (?P<names>[^>]+) -->\n)(?P<text>(?:.+\n?)+)"
)
#: A number or a span of two; none that is a part of a name, as in GPT-2.
NUMBER = re.compile(r"(?<![\w.-])\d+(?:\.\d+)?(?: to \d+(?:\.\d+)?)?(?![\w-])")


@functools.cache
def measured(name):
    """Return what a file of benchmarks/results/ holds."""
    path = ROOT / "benchmarks" / "results" / f"{name}.json"
    return json.loads(path.read_text("utf-8"))


@functools.cache
def computed():
    """Return, by name, what is computed from more than one number."""
    small = measured("results")["clipped"].values()
    real = measured("results")["real_models"].values()
    h100 = {**measured("figures")["h100"]}
    h100.pop("about")
    no_xla = {
        name: step["clipped_no_xla"] / step["plain_no_xla"]
        for name, step in h100.items()
        if "plain_no_xla" in step
    }
    outliers = {name: no_xla.pop(name) for name in ("embed", "lstm")}
    return {
        "small models": span([ratio(m, "ours") for m in small], ".1f"),
        "loops": span([ratio(m, "loop") for m in small], ".2g"),
        "real models": span([ratio(m, "ours") for m in real], ".2f"),
        "number of real models": str(len(real)),
        "h100 without XLA": span(no_xla.values(), ".1f"),
        "h100 embed without XLA": f"{outliers['embed']:.1f}",
        "h100 lstm without XLA": f"{outliers['lstm']:.1f}",
        "h100 steps": steps_table(h100.values()),
        **accumulation(measured("accumulation_memory")),
        **input_gradients(measured("input_gradients")),
    }


def span(values, form):
    return f"{min(values):{form}} to {max(values):{form}}"


def ratio(model, rival):
    """Return how many plain steps a rival's step takes."""
    found = {key.partition("@")[0]: entry for key, entry in model.items()}
    return found[rival]["ratio"][0]


def table(head, rows):
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def three(value):
    """Return three digits of a float, all of an integer, nothing of None."""
    if value is None:
        return ""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.{2 if value < 10 else 1}f}"


def steps_table(steps):
    head = "model, batch|plain, ms|clipped, ms|ratio|without XLA: plain|clipped"
    head += "|first steps, s|peaks, MB"
    keys = ["plain", "clipped", "ratio", "plain_no_xla", "clipped_no_xla"]
    rows = []
    for step in steps:
        pairs = [step.get(key, []) for key in ("first_s", "peak_mb")]
        row = [step["name"], *(three(step.get(key)) for key in keys)]
        rows.append(row + [" and ".join(map(three, pair)) for pair in pairs])
    return table(head.split("|"), rows)


def accumulation(measurements):
    *peaks, times = measurements
    ways = {
        "plain": "plain",
        "keras": "Keras's accumulation",
        "ours": "`Accumulated(microbatch_size=64)`",
    }
    found = {(m["batch"], m["way"]): m for m in peaks}
    rows = []
    for batch in dict.fromkeys(m["batch"] for m in peaks):
        row = [f"{found[batch, way]['peak_mib']:,.0f}" for way in ways]
        data = f"{found[batch, 'plain']['data_mib']:.1f}"
        rows.append([f"{batch:,}", data, *row])
    head = ["batch", "data, MiB", *ways.values()]
    return {
        "accumulation": table(head, rows),
        "accumulation time": f"{times['ours'] / times['small steps']:.2f}",
    }


def input_gradients(measurements):
    times = measurements["ms_a_sample"]
    ways = {
        "tape.gradient in a loop": "`tape.gradient` in a loop",
        "the same in a tf.function": "the same in a `tf.function`",
        "input_gradients": "`input_gradients`",
    }
    rows = []
    for way, name in ways.items():
        slower = times[way] / times["input_gradients"]
        rows.append([name, f"{times[way]:.3f}", f"{slower:.1f}×"])
    head = ["mnist, score of each sample's class", "ms a sample", "to ours"]
    return {"input gradients": table(head, rows)}


def value(name):
    """Return what a mark's name stands for."""
    if "/" not in name:
        return computed()[name]
    path, _, form = name.rpartition(" ")
    file, *keys = path.split("/")
    found = measured(file)
    for key in keys:
        found = found[int(key) if isinstance(found, list) else key]
    return f"{found:{form}}"


def filled(text):
    """Return a page's text with all figures as they are."""
    if text.count("<!-- figure ") != len(MARK.findall(text)):
        raise ValueError("a figure has no <!-- end -->, or a mark inside it")

    def fill(match):
        new = value(match["name"])
        around = "\n\n" if "\n" in new else ""
        begins = text[: match.start()].rpartition("\n")[2].strip() == ""
        if begins and not around:
            # Markdown would end the paragraph before it.
            raise ValueError(f"{match['name']} begins a line of a paragraph")
        return f"{match['start']}{around}{new}{around}<!-- end -->"

    return PARAGRAPH.sub(_fill_paragraph, MARK.sub(fill, text))


def _fill_paragraph(match):
    names, numbers = match["names"].split("; "), NUMBER.findall(match["text"])
    if len(names) != len(numbers):
        raise ValueError(f"{names} are not as many as the numbers {numbers}")
    values = map(value, names)
    return match["start"] + NUMBER.sub(lambda _: next(values), match["text"])


def pages():
    """Return the pages that quote figures."""
    files = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
    files += sorted(ROOT.glob("benchmarks/**/*.md"))
    return [f for f in files if "<!-- figure" in f.read_text("utf-8")]


def main(check):
    stale = False
    for page in pages():
        text = page.read_text("utf-8")
        if filled(text) != text:
            stale = True
            print(f"{page.relative_to(ROOT)}: figures are not those measured")
            if not check:
                page.write_text(filled(text), encoding="utf-8")
    if stale and check:
        sys.exit("run: python docs/make_figures.py")


if __name__ == "__main__":
    main("--check" in sys.argv[1:])
