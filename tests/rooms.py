"""The tests of a feature, and of the features that import it.

python tests/rooms.py stalls
"""

import ast
import pathlib
import sys

HERE = pathlib.Path(__file__).parent
PACKAGE = HERE.parent / "keras_pergrad"
#: They only give names.
FACES = {"callbacks", "diagnose", "extending", "__init__", "__main__"}


def imported(path):
    """Yield the names below the package that a file imports, in parts."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            if name.startswith("keras_pergrad."):
                yield name.split(".")[1:]


def imports():
    """Return for each folder of the package those that it imports."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if room not in FACES:
            others = {first for first, *_ in imported(path)} - {room}
            found.setdefault(room, set()).update(others)
    return found


def above(room, found):
    """Return a folder and all that import it, also through others."""
    rooms, before = {room}, set()
    while rooms != before:
        before = set(rooms)
        rooms |= {name for name, others in found.items() if others & rooms}
    return rooms


def folders(room):
    """Return the folders of tests to run after a change of a feature."""
    found = imports()
    if room not in found:
        raise SystemExit(
            f"Expected one of {', '.join(sorted(found))}. Received: {room}"
        )
    rooms = sorted(above(room, found))
    return [f"tests/{name}" for name in rooms if (HERE / name).is_dir()]


if __name__ == "__main__":
    print(*folders(sys.argv[1]))
