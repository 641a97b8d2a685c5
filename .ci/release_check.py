"""The check of a release, before anybody uploads it.

    make release-check
    python .ci/release_check.py notes 1.0.0

The first builds the archives into dist/ and the list of what they need
(`build/release/*.cdx.json`), and ends with the first thing that is wrong. It
runs in the environment of constraints/release.txt. The second prints the
section of a version in the changelog.
"""

import argparse
import ast
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

ROOT = pathlib.Path(__file__).parents[1]
WORK = ROOT / "build" / "release"
#: Of the public names and their members, in percent, how many have a type that
#: pyright knows.
TYPED = 95
#: The packages that everybody gets; a fourth needs a reason.
CORE = {"tensorflow", "keras", "numpy"}


def run(*command, **settings):
    """Run a command, and return what it prints."""
    command = [str(part) for part in command]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, **settings
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)}:\n{done.stdout}{done.stderr}")
    return done.stdout


def version():
    """Return the version that stands in the package."""
    text = (ROOT / "keras_pergrad" / "__init__.py").read_text("utf-8")
    return re.search(r'__version__ = "(.+)"', text)[1]


def notes(of):
    """Return the text of a version's section in the changelog."""
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        if section.startswith(f"[{of}]"):
            return section.partition("\n")[2].strip()
    sys.exit(
        f"CHANGELOG.md has no section for {of}: add a line '## [{of}] - "
        "YYYY-MM-DD' with what has changed."
    )


def build(folder):
    """Build both archives into an empty folder; return sdist and wheel."""
    shutil.rmtree(folder, ignore_errors=True)
    day = run("git", "log", "-1", "--format=%ct", cwd=ROOT).strip()
    run(
        *(sys.executable, "-m", "build", "--outdir", folder, ROOT),
        env={**os.environ, "SOURCE_DATE_EPOCH": day},
    )
    return [*sorted(folder.glob("*.tar.gz")), *sorted(folder.glob("*.whl"))]


def digest(path):
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check_contents(sdist, wheel):
    """Look at the names in both archives, and at what the wheel needs."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (n for n in names if n.endswith("/METADATA"))
        text = archive.read(metadata).decode()
    info = metadata.partition("/")[0]
    others = {name.partition("/")[0] for name in names}
    if others != {"keras_pergrad", info}:
        sys.exit(f"{wheel.name} holds more than the package: {others}")
    here = {
        str(path.relative_to(ROOT))
        for path in ROOT.glob("keras_pergrad/**/*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    packed = {name for name in names if not name.startswith(info)}
    if packed != here or "keras_pergrad/py.typed" not in packed:
        sys.exit(f"{wheel.name} differs from the folder: {packed ^ here}")
    needs = re.findall(r"^Requires-Dist: ([\w-]+)[^;\n]*$", text, re.MULTILINE)
    if set(needs) != CORE:
        sys.exit(f"{wheel.name} needs {needs}, not {sorted(CORE)}")
    with tarfile.open(sdist) as archive:
        inner = {n.partition("/")[2] for n in archive.getnames()}
    for name in ("LICENSE", "CHANGELOG.md", "tests/smoke.py", *here):
        if name not in inner:
            sys.exit(f"{sdist.name} lacks {name}")


def interpreters(names):
    """Return the path of each interpreter that is here and runs."""
    found = {}
    for name in names:
        ask = [name, "-c", "import sys; print(sys.executable)"]
        try:
            found[name] = subprocess.check_output(
                ask, text=True, stderr=subprocess.DEVNULL
            ).strip()
        except (OSError, subprocess.CalledProcessError):
            print(f"  {name} is not here: left out")
    if not found:
        sys.exit(f"none of {names} is here: name one, as PYTHONS=python3.12")
    return found


def try_out(python, archives):
    """Install each archive where nothing of the package is, and use it.

    The dependencies are installed once, with the first archive; the package
    is removed before the next one comes. Returns the environment's Python.
    """
    place = WORK / "environment"
    shutil.rmtree(place, ignore_errors=True)
    run(python, "-m", "venv", place)
    inside = place / "bin" / "python"
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    pip = (inside, "-m", "pip", "--disable-pip-version-check")
    newest = ROOT / "constraints" / "newest.txt"
    for archive in archives:
        run(*pip, "install", "--quiet", "-c", newest, archive, env=clean)
        for command in (
            ["-m", "pip", "check"],
            ["-m", "keras_pergrad", "doctor"],
            [ROOT / "tests" / "smoke.py"],
        ):
            said = run(inside, *command, cwd=WORK, env=clean)
        print(f"  {archive.name}: {said.strip().splitlines()[-1]}")
        if archive != archives[-1]:
            run(*pip, "uninstall", "--quiet", "--yes", "keras-pergrad")
    return inside


def public_names():
    """Return the full names of what the namespaces of the package export."""
    folder = ROOT / "keras_pergrad"
    files = [folder / "runs" / "__init__.py"]
    return {
        f"{node.module}.{name.name}"
        for file in [*folder.glob("**/__init__.pyi"), *files]
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("keras_pergrad.")
        for name in node.names
    }


def check_types(inside):
    """Count the public names whose types are known, of the installed wheel."""
    path = f"{inside.parent}{os.pathsep}{os.environ['PATH']}"
    command = [sys.executable, "-m", "pyright", "--outputjson"]
    # It ends with an error where the type of a single name is not known.
    done = subprocess.run(
        [*command, "--verifytypes", "keras_pergrad", "--ignoreexternal"],
        capture_output=True,
        text=True,
        check=False,
        cwd=WORK,
        env={**os.environ, "PATH": path, "VIRTUAL_ENV": str(inside.parents[1])},
    )
    public = public_names()
    known = [
        symbol["isTypeKnown"] and not symbol["isTypeAmbiguous"]
        for symbol in json.loads(done.stdout)["typeCompleteness"]["symbols"]
        if symbol["isExported"]
        and any(f"{symbol['name']}.".startswith(f"{n}.") for n in public)
    ]
    if not known:
        sys.exit(f"pyright found no public name: {done.stdout[:500]}")
    score = 100 * sum(known) / len(known)
    print(f"  types: {score:.1f} % of {len(known)} public names and members")
    if score < TYPED:
        sys.exit(f"fewer than {TYPED} %: annotate what is new")


def strip_local(bill):
    """Take out of an SBOM where on this machine things came from."""
    document = json.loads(bill.read_text("utf-8"))
    for component in document["components"]:
        references = component.get("externalReferences", [])
        component["externalReferences"] = [
            r for r in references if r["type"] != "distribution"
        ]
    text = json.dumps(document, indent=2) + "\n"
    if "file:" in text or str(ROOT) in text:
        sys.exit(f"{bill} names a path of this machine")
    bill.write_text(text, "utf-8")


def check(names):
    """Build, look, install, use, and list what is needed."""
    notes(version())
    pythons = interpreters(names)
    archives = build(ROOT / "dist")
    again = build(WORK / "again")
    for one, two in zip(archives, again, strict=True):
        if digest(one) != digest(two):
            sys.exit(f"{one.name} differs when it is built again")
        print(f"  {one.name}: sha256 {digest(one)}")
    if len(archives) != 2 or not all(version() in a.name for a in archives):
        sys.exit(f"dist/ should hold an sdist and a wheel: {archives}")
    check_contents(*archives)
    run(sys.executable, "-m", "twine", "check", "--strict", *archives)
    for name, python in pythons.items():
        print(f"{name}:")
        inside = try_out(python, archives[::-1])
    check_types(inside)
    bill = WORK / f"keras_pergrad-{version()}.cdx.json"
    run(
        *(sys.executable, "-m", "cyclonedx_py", "environment", inside),
        *("--output-reproducible", "--of", "JSON", "-o", bill),
    )
    strip_local(bill)
    print(f"  {bill.relative_to(ROOT)}: what the environment holds")
    print(f"{version()} can be released")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check").add_argument("pythons", nargs="+")
    commands.add_parser("notes").add_argument("version")
    given = parser.parse_args()
    if given.command == "notes":
        print(notes(given.version))
    else:
        check(given.pythons)


if __name__ == "__main__":
    main()
