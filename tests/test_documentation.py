"""The README and the guides: their code runs, their commands exist."""

import ast
import contextlib
import functools
import json
import operator
import pathlib
import re
import tomllib

import keras
import pytest

import keras_pergrad as kpg
from docs import addresses, blocks, make_figures, make_install
from keras_pergrad.proof.tensor_types import USER_RULES
from tests import type_table
from tests.marks import few

ROOT = pathlib.Path(__file__).parents[1]
#: Pages whose code runs as it stands, with the seconds it takes on one core.
PAGES = {
    "README.md": 40,
    "docs/gradient_modes.md": 8,
    "docs/gramian_aggregations.md": 5,
    "docs/guides/batch_does_not_fit.md": 24,
    "docs/guides/cheaper_gradients.md": 22,
    "docs/guides/coming_from.md": 7,
    "docs/guides/conflicting_losses.md": 15,
    "docs/guides/consistent_gradients.md": 20,
    "docs/guides/fisher_information.md": 13,
    "docs/guides/healthy_training.md": 15,
    "docs/guides/input_gradients.md": 14,
    "docs/guides/keras_hub.md": 30,
    "docs/guides/noise_and_batch_size.md": 11,
    "docs/guides/unusual_samples.md": 9,
    "docs/guides/parallel.md": 11,
    "docs/guides/physics_informed.md": 25,
    "docs/guides/samples_that_matter.md": 35,
    "docs/guides/slow_training.md": 21,
    "docs/guides/text_models.md": 19,
    "docs/guides/tuning_privately.md": 20,
    "docs/guides/what_you_may_have_read.md": 85,
    "docs/guides/your_own_loop.md": 9,
    "docs/guides/your_own_model.md": 13,
    "docs/private_training.md": 36,
    "docs/sample_values.md": 10,
    "docs/trust.md": 10,
}
GUIDES = sorted(p for p in ROOT.glob("docs/guides/*.md") if p.stem != "index")
#: Pages that take a model and data for granted.
OTHER_PAGES = {
    "docs/compare_runs.md": 6,
    "docs/data_stall.md": 2,
    "docs/device_placement.md": 5,
    "docs/gradient_health.md": 3,
    "docs/gradient_variance.md": 2,
    "docs/trackers.md": 6,
    "docs/types.md": 1,
}
ALL_PAGES = PAGES | OTHER_PAGES
#: The README is always run; the longest of the others are exhaustive.
QUICK = [page for page, seconds in ALL_PAGES.items() if seconds < 10]
IN_CI = ["README.md"] + [p for p, seconds in ALL_PAGES.items() if seconds < 25]
BEFORE = """
import keras
import numpy as np
import tensorflow as tf

import keras_pergrad as kpg

x = np.random.default_rng(0).normal(size=(300, 4)).astype("float32")
y = x[:, :1] * x[:, 1:2]
loss = "mse"


def make_model():
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(8, activation="tanh")(inputs)
    model = kpg.PerGradModel(inputs, keras.layers.Dense(1)(hidden))
    model.compile("adam", loss, gradient_mode="batch")
    return model


model = make_model()
dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(50)
"""
#: What fences may say: run here, shown, or checked by the tests below.
LANGUAGES = {"diff", "python", "text", "sh"}
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


@functools.cache
def _blocks(page):
    return blocks.blocks((ROOT / page).read_text(encoding="utf-8"))


def _stem(page):
    return pathlib.Path(page).stem


#: Page → how many of its outputs follow the clock, and so may use other words.
BY_THE_CLOCK = {
    "docs/guides/cheaper_gradients.md": 1,
    "docs/guides/slow_training.md": 2,
    "docs/guides/your_own_loop.md": 1,
}


def _words(output):
    """Return the words of an output, without digits and units."""
    return set(re.findall(r"[a-z]{3,}", output.lower())) - {"bytes"}


@pytest.mark.parametrize("page", few(ALL_PAGES, QUICK, IN_CI), ids=_stem)
# Keras tells a loop over models that each is traced anew.
@pytest.mark.filterwarnings("ignore:.*retracing")
# And for each layer without weights that there is nothing to quantize.
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")
# Where a dataset is given, it tells that it does not shuffle it.
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")
def test_code_runs(page, tmp_path, monkeypatch):
    matplotlib = pytest.importorskip("matplotlib")
    if "private" in page or "trust" in page:
        pytest.importorskip("dp_accounting")
    if page in OTHER_PAGES:
        pytest.importorskip("scipy")
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    matplotlib.use("Agg")
    policy = keras.config.dtype_policy()
    try:
        differing, text = [], (ROOT / page).read_text(encoding="utf-8")
        before = BEFORE if page in OTHER_PAGES else ""
        with contextlib.chdir(tmp_path):
            for block, printed in blocks.run(ROOT / page, before):
                assert block.code.strip()
                shown = blocks.shown_after(text, block)
                if shown is None or "..." in shown.code:
                    continue  # A page shortens an output with dots.
                missing = _words(shown.code) - _words(printed)
                if missing:
                    differing.append((block.line, missing))
        allowed = BY_THE_CLOCK.get(page, 0)
        assert len(differing) <= allowed, f"{differing}: make outputs"
    finally:
        keras.config.set_dtype_policy(policy)
        matplotlib.pyplot.close("all")
        # A rule for functions of NumPy holds for that page alone.
        USER_RULES.clear()


def test_the_table_of_types_is_that_of_the_rules():
    """`python docs/make_type_table.py` writes it."""
    text = type_table.PAGE.read_text(encoding="utf-8")
    assert text == type_table.page(text)


def test_figures_are_those_measured():
    """`python docs/make_figures.py` writes them; the README quotes some."""
    pages = make_figures.pages()
    assert ROOT / "README.md" in pages
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert make_figures.filled(text) == text, page


def test_the_readme_tells_no_cost_by_hand():
    """All numbers of the section are in paragraphs whose figures are named."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    cost = text.split("## What it costs\n")[1].split("\n## ")[0]
    (paragraph,) = make_figures.PARAGRAPH.findall(cost)
    assert paragraph[1].count(";") > 5
    assert not re.search(r"\d", make_figures.PARAGRAPH.sub("", cost))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("a <!-- figure no such -->1<!-- end -->", KeyError),
        ("a <!-- figure results/clipped/no/0 .2f -->1<!-- end -->", KeyError),
        ("a <!-- figure loops -->1", ValueError),
        (
            "a <!-- figure loops -->1 <!-- figure loops -->1<!-- end -->",
            ValueError,
        ),
        ("a\n<!-- figure loops -->1<!-- end -->", ValueError),
        ("<!-- figures: loops -->\n1 to 2 times, or 3\n", ValueError),
        ("<!-- figures: loops; loops -->\nGPT-2: 1 to 2\n", ValueError),
    ],
)
def test_a_mark_that_cannot_be_filled_is_an_error(text, error):
    with pytest.raises(error):
        make_figures.filled(text)


def test_rules_that_are_shown_are_those_of_the_package():
    rules = (ROOT / "keras_pergrad").rglob("*_rules.py")
    package = "".join(path.read_text(encoding="utf-8") for path in rules)
    shown = [
        b.code for b in _blocks("CONTRIBUTING.md") if b.language == "python"
    ]
    assert len(shown) == 2
    for code in shown:
        assert code.strip() in package


def test_every_page_with_code_is_run():
    guides = {f"docs/guides/{p.name}" for p in ROOT.glob("docs/guides/*.md")}
    with_code = {
        page
        for page in guides | {"README.md"}
        if any(block.language == "python" for block in _blocks(page))
    }
    assert with_code == {p for p in PAGES if "guides" in p or p == "README.md"}


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_guide_opens_with_what_is_typed(page):
    """One line under the title, whose names exist."""
    title, line, *_ = page.read_text(encoding="utf-8").split("\n\n")
    assert title.startswith("# ")
    assert line.startswith("**In code:** `")
    names = re.findall(r"\bkpg((?:\.\w+)+)", line)
    assert names or "gradient_mode" in line
    for name in names:
        assert operator.attrgetter(name[1:])(kpg), name


def test_every_guide_is_in_the_menu_and_in_the_chooser():
    chooser = (ROOT / "docs/guides/index.md").read_text(encoding="utf-8")
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in GUIDES:
        assert f"]({page.name})" in chooser, page.name
        assert f": guides/{page.name}\n" in menu, page.name


@pytest.mark.parametrize("page", ALL_PAGES)
def test_outputs_are_filled_in(page):
    """`make outputs` writes what stands behind a block of Python."""
    assert "python" in {block.language for block in _blocks(page)}
    for block in _blocks(page):
        assert block.language in LANGUAGES, block
        if block.language == "python":
            ast.parse(block.code)
        assert block.code.strip(), f"{page}, line {block.line}: make outputs"


@pytest.mark.parametrize("page", ["README.md", "docs/install.md"])
def test_commands_exist(page):
    make = (ROOT / "Makefile").read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = extras["optional-dependencies"]
    commands = "".join(b.code for b in _blocks(page) if b.language == "sh")
    assert commands
    for target in re.findall(r"make (\w+)", commands):
        assert re.search(rf"^{target}:", make, re.MULTILINE), target
    for names in re.findall(r"\[([\w,-]+)\]", commands):
        assert set(names.split(",")) <= set(extras), names


def test_make_help_names_every_target():
    make = (ROOT / "Makefile").read_text()
    shown = "".join(line for line in make.splitlines() if line.startswith("##"))
    targets = re.findall(r"^([a-z][\w-]*):", make, re.MULTILINE)
    inside = {"setup", "bench-venvs", "help"}
    missing = {t for t in targets if not re.search(rf"\b{t}\b", shown)} - inside
    assert not missing


#: Words that people search for, in the guide that answers.
SEARCHED = {
    "batch_does_not_fit": ["out of memory", "fit in memory"],
    "cheaper_gradients": ["compute gradients efficiently"],
    "consistent_gradients": ["inconsistent"],
    "input_gradients": [
        *("adversarial", "saliency", "Jacobian", "big data"),
        "MirroredStrategy",
    ],
    "keras_hub": ["freeze", "QLoRA"],
    "unusual_samples": ["mislabeled", "label noise"],
    "parallel": ["GradientTape", "autodiff", "MirroredStrategy"],
    "physics_informed": ["PINN", "WGAN-GP"],
    "tuning_privately": ["hyper-parameters"],
    "what_you_may_have_read": [
        *("M1", "Neural Engine", "AdamW", "standardize", "mixed precision"),
        *("model parallelism", "prefetch", "set_visible_devices", "map_fn"),
        *("pruning", "weight sharing", "cache misses", "tape overhead"),
        *("memory bound", "sparse weights", "normalize"),
    ],
    "your_own_loop": [
        *("GradientTape", "vectorized_map", "per-sample updates", "accumulate"),
        *("online descent", "slow generator"),
    ],
    "your_own_model": ["mix samples", "freeze"],
}


@pytest.mark.parametrize("page", SEARCHED)
def test_words_that_people_search_for(page):
    """They are in headings, or in what a page begins with."""
    text = (ROOT / f"docs/guides/{page}.md").read_text(encoding="utf-8")
    begin, *_ = text.split("\n## ", 1)
    headings = re.findall(r"^#+ .*", text, re.MULTILINE)
    begin = re.sub(r"```.*?```", "", begin, flags=re.DOTALL)
    found = " ".join([begin, *headings]).replace("\n", " ").lower()
    assert [w for w in SEARCHED[page] if w.lower() not in found] == []


def test_named_examples_exist():
    for page in [
        "README.md",
        *(f"docs/{p.name}" for p in ROOT.glob("docs/*.md")),
    ]:
        text = (ROOT / page).read_text(encoding="utf-8")
        for name in re.findall(r"examples/(\w+\.py)", text):
            assert (ROOT / "examples" / name).exists(), f"{page}: {name}"


def test_readme_is_one_page_of_plain_sentences():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 100
    for line in text.splitlines():
        assert line.startswith("<!--") or "<!--" not in line, line


def test_readme_works_where_only_it_is_shown(tmp_path, monkeypatch):
    """In the package's metadata, links and pictures are whole addresses."""
    pytest.importorskip("hatch_fancy_pypi_readme")
    hatchling = pytest.importorskip("hatchling.build")
    monkeypatch.chdir(ROOT)
    folder = hatchling.prepare_metadata_for_build_wheel(str(tmp_path))
    text = (tmp_path / folder / "METADATA").read_text(encoding="utf-8")
    assert "\nDescription-Content-Type: text/markdown\n" in text
    targets = re.findall(r"\]\((.+?)\)", text)
    assert len(targets) > 10
    starts = addresses.FILE, addresses.PICTURE
    for target in targets:
        start = next((s for s in starts if target.startswith(s)), None)
        assert start, f"{target} is no address of the repository"
        file = target.removeprefix(start).partition("#")[0]
        assert (ROOT / file).is_file(), target
    assert any(t.startswith(addresses.PICTURE) for t in targets)


@pytest.mark.parametrize(
    "page", make_install.pages(), ids=lambda page: page.stem
)
def test_installation_is_that_of_the_setting(page):
    """`python docs/make_install.py` writes it; both states come back."""
    text = page.read_text(encoding="utf-8")
    assert make_install.as_set(text) == text
    other = make_install.as_set(text, not addresses.PUBLISHED)
    assert other != text
    assert make_install.as_set(other) == text


def test_no_page_takes_the_package_from_an_index_that_lacks_it():
    """An extra can be added by name where the package is installed."""
    files = [*ROOT.glob("*.md"), *ROOT.glob("examples/*.py")]
    files += [*ROOT.glob("docs/**/*.md"), *ROOT.glob("docs/**/*.ipynb")]
    wrong = [
        file.relative_to(ROOT)
        for file in files
        if re.search(
            r"pip install (-\S+ )*[\"']?keras[-_]pergrad(?!\[)",
            file.read_text(encoding="utf-8"),
        )
    ]
    assert addresses.PUBLISHED or wrong == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_has_the_code_of_its_guide(path):
    """`make docs` also compares the text, for which it has jupytext."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]
    guide = [
        block.code.rstrip("\n")
        for block in _blocks(f"docs/guides/{path.stem}.md")
        if block.language == "python"
    ]
    assert "pip install" in code[0]
    assert code[1:] == guide
    badge = "colab" in "".join(cells[0]["source"])
    assert badge == addresses.PUBLISHED


def test_addresses_stand_in_one_place():
    """The site, the guides and the citation name the same repository."""
    assert len(NOTEBOOKS) == 5
    for name in ("mkdocs.yml", "CITATION.cff"):
        text = (ROOT / name).read_text()
        assert addresses.REPOSITORY in text, name
        assert addresses.SITE in text, name
    for path in NOTEBOOKS:
        guide = (ROOT / "docs/guides" / f"{path.stem}.md").read_text()
        start = addresses.COLAB + "docs" if addresses.PUBLISHED else ".."
        assert f"]({start}/notebooks/{path.name})" in guide


def test_versions_agree():
    """The version stands in the package; what cites it follows."""
    text = (ROOT / "keras_pergrad" / "__init__.py").read_text()
    version = re.search(r'__version__ = "(.+)"', text)[1]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text()


def test_changelog_is_grouped():
    """The groups of Keep a Changelog, each once, in the same order."""
    order = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.split(r"^## (?=\[)", text, flags=re.MULTILINE)[1:]
    versions[-1] = versions[-1].partition("\n## ")[0]
    # Those that existed, each with its day.
    days = [
        re.match(r"\[[\d.]+(?:rc\d+)?\] - (\d{4}-\d\d-\d\d)\n", version)
        for version in versions
        if not version.startswith("[Unreleased]\n")
    ]
    assert all(days)
    assert [d[1] for d in days] == sorted((d[1] for d in days), reverse=True)
    for version in versions:
        head, *groups = re.split(r"^### ", version, flags=re.MULTILINE)
        names = [group.partition("\n")[0] for group in groups]
        assert names == [name for name in order if name in names], head
        assert names, head
        for group in groups:
            for line in group.splitlines()[1:]:
                assert not line or line.startswith(("- ", "  ")), line


@pytest.mark.parametrize(
    "path",
    sorted(p.relative_to(ROOT) for p in ROOT.glob(".github/**/*.yml")),
    ids=lambda path: path.stem,
)
def test_github_file_is_well_formed(path):
    yaml = pytest.importorskip("yaml")
    found = yaml.safe_load((ROOT / path).read_text())
    if path.parent.name == "workflows":
        # YAML reads the key `on` as true.
        assert found["jobs"]
        assert True in found
        for job in found["jobs"].values():
            assert {"steps", "runs-on"} <= set(job)


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob(".github/workflows/*.yml")), ids=lambda p: p.stem
)
def test_workflow_trusts_little(path):
    """Actions are named by commit; what a job may do, it says itself."""
    text = path.read_text()
    used = re.findall(r"uses: (.+)", text)
    assert used
    for action in used:
        assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", action), action
    assert "\npermissions:\n    contents: read\n" in text
    kept = text.count("uses: actions/checkout@")
    assert text.count("persist-credentials: false") == kept
