"""What mkdocs does beside its ordinary work.

Pages that stand at the root of the repository become pages of the site, links
between files become links between pages or to the repository, and a public
name without a docstring or a place in the reference fails the build.
"""

import ast
import os
import pathlib
import posixpath
import re

import griffe
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

from docs.addresses import FILE, FOLDER, ROOT

#: Files outside of docs/ and where the site has them.
ELSEWHERE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "CODE_OF_CONDUCT.md": "code_of_conduct.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "benchmarks.md",
    **{
        f"benchmarks/results/{path.name}": f"benchmarks/{path.name}"
        for pattern in ("*.md", "*.png")
        for path in sorted((ROOT / "benchmarks" / "results").glob(pattern))
    },
}
#: Names of the package that are modules.
NAMESPACES = (
    "aggregations",
    "callbacks",
    "diagnose",
    "extending",
    "influence",
    "modes",
    "privacy",
    "runs",
    "trackers",
)
#: Modules whose `__all__` is public.
PUBLIC = ["keras_pergrad", *(f"keras_pergrad.{n}" for n in NAMESPACES)]

LINK = re.compile(
    r"(?P<before>\]\()(?P<target>[^)\s#:]+)(?P<anchor>#[^)\s]*)?\)"
)
PAPER = re.compile(r"\barXiv:? (\d{4}\.\d{4,5})\b")
ENTRY = re.compile(r"^::: ([\w.]+)", re.MULTILINE)
#: What mkdocstrings puts where a result has no name.
NAMELESS = re.compile(r'(<li class="doc-section-item field-body">)\s*–')


def on_config(config):
    """Refuse to build where the reference is not complete."""
    # Only the pages of several versions have a list to choose from.
    if "MIKE_DOCS_VERSION" in os.environ:
        config.extra["version"] = {"provider": "mike", "default": "latest"}
    names = [
        name
        for page in sorted(ROOT.glob("docs/reference/*.md"))
        for name in ENTRY.findall(page.read_text())
    ]
    package = griffe.load("keras_pergrad", search_paths=[ROOT])
    wrong = [f"{name} stands twice" for name in names if names.count(name) > 1]
    for name in names:
        entry = package[name.removeprefix("keras_pergrad.")]
        if not entry.has_docstring:
            wrong.append(f"{name} has no docstring")
    wrong += [
        f"{name} has no place in docs/reference"
        for name in public_names(package)
        if name not in names
    ]
    if wrong:
        raise PluginError("\n".join(sorted(set(wrong))))
    return config


def public_names(package):
    """Return the dotted names that the reference must have."""
    at_root = exports(package) - set(NAMESPACES)
    for path in PUBLIC:
        module = package
        for part in path.split(".")[1:]:
            module = module[part]
        for name in sorted(exports(module)):
            # What stands at the root, too, has its place by that name.
            again = name in at_root and module is not package
            if not again and name not in NAMESPACES:
                yield f"{path}.{name}"


def exports(module):
    """Return a package's public names: those of its stub, if it has one."""
    stub = pathlib.Path(module.filepath).with_suffix(".pyi")
    if not stub.exists():
        return set(module.exports)
    return {
        alias.asname or alias.name
        for node in ast.parse(stub.read_text()).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def on_files(files, config):
    """Add the pages and pictures from outside of docs/."""
    for source, target in ELSEWHERE.items():
        files.append(
            File.generated(config, target, abs_src_path=str(ROOT / source))
        )
    return files


def on_page_markdown(markdown, page, config, *, files):
    """Turn links between files into links of the site."""
    here = page.file.src_uri
    path = next((s for s, t in ELSEWHERE.items() if t == here), f"docs/{here}")

    def link(match):
        target = match["target"]
        if target.startswith("/"):
            return match[0]
        file = posixpath.normpath(
            posixpath.join(posixpath.dirname(path), target)
        )
        url = _url(file, here, config, anchor=match["anchor"] or "")
        return f"{match['before']}{url})"

    def linked(text):
        text = LINK.sub(link, text)
        return PAPER.sub(r"[arXiv \1](https://arxiv.org/abs/\1)", text)

    return outside_of_code(linked, markdown)


def on_nav(nav, config, files):
    """Keep the titles and addresses of all pages for `llms.txt`."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}"]
    for item in nav.items:
        if item.is_section:
            lines += ["", f"## {item.title}", ""]
        else:
            lines += [""] if lines[-1].startswith(">") else []
        lines += [
            f"- [{page.title or item.title}]({page.canonical_url})"
            for page in _pages_of(item)
        ]
    config.extra["llms"] = "\n".join([*lines, ""])
    return nav


def _pages_of(item):
    if item.is_page:
        return [item]
    return [page for child in item.children for page in _pages_of(child)]


def on_post_build(config):
    """Write what the site has, for programs that read."""
    path = pathlib.Path(config.site_dir, "llms.txt")
    path.write_text(config.extra["llms"], encoding="utf-8")


def on_page_content(html, page, config, *, files):
    """Take off the dash between a missing name and its text."""
    return NAMELESS.sub(r"\1", html)


def outside_of_code(change, markdown):
    """Apply a function to what is not inside of a fenced block."""
    parts = re.split(
        r"(^```.*?^```$)", markdown, flags=re.DOTALL | re.MULTILINE
    )
    return "".join(
        part if part.startswith("```") else change(part) for part in parts
    )


def _url(file, here, config, *, anchor):
    """Where a file of the repository is to be found, seen from a page."""
    page = ELSEWHERE.get(file)
    if page is None and file.startswith("docs/"):
        inside = file.removeprefix("docs/")
        is_page = inside.endswith((".md", ".png", ".svg", ".css"))
        if is_page and inside != "requirements.txt":
            page = inside
    if page is not None:
        start = posixpath.dirname(here) or "."
        return posixpath.relpath(page, start) + anchor
    if not (ROOT / file).exists():
        raise PluginError(f"{here} links to {file}, which is not there")
    start = FOLDER if (ROOT / file).is_dir() else FILE
    return f"{start}{file}{anchor}"
