"""The tests of a feature, and of the features that import it.

python tests/rooms.py stalls
"""

import ast
import pathlib
import sys

HERE = pathlib.Path(__file__).parent
PACKAGE = HERE.parent / "keras_pergrad"
#: They only give names.
FACES = {"callbacks", "__init__", "__main__", "results"}


def imports():
    """Return for each folder of the package those that it imports."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if room in FACES:
            continue
        nodes = ast.walk(ast.parse(path.read_text()))
        found.setdefault(room, set()).update(
            name.split(".")[1]
            for node in nodes
            if isinstance(node, ast.ImportFrom) and node.module
            for alias in node.names
            for name in [f"{node.module}.{alias.name}"]
            if name.startswith("keras_pergrad.")
        )
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
