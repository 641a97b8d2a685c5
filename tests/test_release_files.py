"""What a release takes along: recipe, citation, paper, gallery."""

import pathlib
import re
import tomllib

import pytest

import keras_pergrad as kpg

ROOT = pathlib.Path(__file__).parents[1]


def text(path):
    return (ROOT / path).read_text(encoding="utf-8")


def project():
    return tomllib.loads(text("pyproject.toml"))["project"]


def test_the_recipe_says_what_the_package_says():
    recipe = pytest.importorskip("yaml").safe_load(text("recipe/recipe.yaml"))
    assert recipe["context"]["version"] == kpg.__version__
    python, *packages = recipe["requirements"]["run"]
    least = recipe["context"]["python_min"]
    python = python.replace("${{ python_min }}", least)
    assert python == f"python {project()['requires-python']}"
    wanted = [package.replace(" ", "") for package in packages]
    assert wanted == project()["dependencies"]
    (script,) = recipe["build"]["python"]["entry_points"]
    name, _, function = script.partition(" = ")
    assert project()["scripts"] == {name: function}


def test_the_citation_has_a_place_for_the_doi():
    assert re.search(r"^doi: 10\.5281/zenodo\.\d+$", text("CITATION.cff"), re.M)


def test_the_papers_figures_are_those_of_the_benchmarks():
    paper, results = (
        text("paper/paper.md"),
        text("benchmarks/results/results.md"),
    )
    _, _, clipped = results.partition("## Clipped step: milliseconds")
    clipped = clipped.partition("\n## ")[0].splitlines()
    rows = [line for line in paper.splitlines() if line.startswith("|")]
    assert len(rows) > 6
    assert set(rows) <= set(clipped)
    for picture in re.findall(r"!\[.*?\]\((.+?)\)", paper):
        assert (ROOT / "paper" / picture).is_file(), picture


def test_the_paper_cites_what_its_list_has():
    cited = set(re.findall(r"@(\w+)", text("paper/paper.md")))
    listed = set(re.findall(r"^@\w+\{(\w+),", text("paper/paper.bib"), re.M))
    assert cited == listed


def test_the_gallery_has_every_example():
    gallery = text("docs/examples.md")
    for path in ROOT.glob("examples/*.py"):
        assert path.name in gallery, path.name
