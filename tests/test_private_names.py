"""Private names of Keras, TensorFlow and Grain: in one room, and listed there.

What is private to them may change in any release. So only
`keras_pergrad/keras_internals` uses such names, behind names of its own, and
each file there lists in its header what it uses.
"""

import ast
import collections
import pathlib
import re

import keras
import pytest
import tensorflow as tf

import keras_pergrad

ROOT = pathlib.Path(keras_pergrad.__file__).parent
ROOM = ROOT / "keras_internals"
FOREIGN = (
    "keras.src",
    "keras._tf_keras",
    "tensorflow.core",
    "tensorflow.python",
    "grain._src",
)
#: Strings that are no attributes of Keras's or TensorFlow's objects.
NO_ATTRIBUTES = {
    "_logs_of_epoch": "what a PerGradModel defines for its base",
    "_gradients": "what a factor keeps",
    "_initializer": "the end of names of public attributes of layers",
    "_mask": "the end of names of attributes of StridedSlice",
    "_ms": "the end of names of figures",
    "_replace": "of a named tuple, and public",
}


def _files(inside):
    paths = sorted(ROOT.rglob("*.py"))
    return [path for path in paths if (ROOM in path.parents) == inside]


def _tree(path):
    return ast.parse(path.read_text())


def _is_private(name):
    return name.startswith("_") and not name.startswith("__") and name[1:]


def _defined(tree):
    """Return the private names that a file defines: of classes, on `self`."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif _is_attribute(node) and _is_own(node.value):
            names |= {node.attr} if isinstance(node.ctx, ast.Store) else set()
        elif isinstance(node, ast.Call) and _is_setting(node):
            names.add(node.args[1].value)
    return {name for name in names if _is_private(name)}


def _is_attribute(node):
    return isinstance(node, ast.Attribute)


def _is_setting(call):
    """Whether this is `object.__setattr__(self, "name", value)`."""
    return ast.unparse(call).startswith("object.__setattr__(self, '")


def _is_own(node):
    """Whether an attribute is taken from self, cls or super()."""
    if isinstance(node, ast.Call):
        node = node.func
    return isinstance(node, ast.Name) and node.id in ("self", "cls", "super")


@pytest.fixture(scope="module")
def of_others():
    """Return the private names that objects of Keras and TensorFlow have."""
    inputs = keras.Input((2,))
    layer = keras.layers.Dense(1)
    model = keras.Model(inputs, layer(inputs))
    sequential = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    for each in (model, sequential):
        each.compile("sgd", "mse")
        each.train_on_batch(tf.ones([1, 2]), tf.ones([1, 1]))
    graph = tf.function(lambda: tf.ones([1])).get_concrete_function().graph
    objects = [
        *(model, sequential, layer, inputs, model.loss, model.optimizer),
        *(layer.kernel, model.metrics[0], graph, graph.get_operations()[0]),
        tf.data.Dataset.from_tensors(1).batch(2),
        keras.losses.MeanSquaredError(),
    ]
    return {name for each in objects for name in dir(each) if _is_private(name)}


def _foreign_imports(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        yield from (name for name in names if f"{name}.".startswith(FOREIGN))


def _taken(tree):
    """Yield (private name, whether of oneself), as attributes and strings."""
    for node in ast.walk(tree):
        if _is_attribute(node) and _is_private(node.attr):
            yield node.attr, _is_own(node.value)
        elif isinstance(node, ast.Constant) and _may_be_one(node.value):
            yield node.value, False


def _may_be_one(value):
    return isinstance(value, str) and re.fullmatch(r"_[a-z]\w*", value)


def _uses(tree, of_others, of_ours):
    """Return the private names that code takes from objects of others."""
    own = _defined(tree)
    found = set()
    for name, of_oneself in _taken(tree):
        if of_oneself and name in of_ours:
            continue
        if name in of_others or name not in own | of_ours:
            found.add(name)
    return found - set(NO_ATTRIBUTES)


def test_private_names_stay_in_their_room(of_others):
    of_ours = set().union(*(_defined(_tree(p)) for p in _files(False)))
    used = {}
    for path in _files(inside=False):
        tree = _tree(path)
        names = [*_foreign_imports(tree), *_uses(tree, of_others, of_ours)]
        if names:
            used[str(path.relative_to(ROOT))] = names
    assert not used


def test_nothing_overrides_what_is_private(of_others):
    """A method that Keras calls by a private name stands in the room."""
    for path in _files(inside=False):
        tree = _tree(path)
        methods = {
            inner.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
            and any("keras" in ast.unparse(base) for base in node.bases)
            for inner in node.body
            if isinstance(inner, ast.FunctionDef)
        }
        assert not methods & of_others, path


def _header(tree):
    """Return the names that a module's docstring lists as private ones."""
    text = ast.get_docstring(tree)
    parts = [p for p in text.split("\n\n") if p.startswith("Private name")]
    assert len(parts) <= 1
    names = re.findall(r"`([\w.]+)(?:\(\))?`", parts[0]) if parts else []
    return set(names)


def test_lists_of_private_names_stand_only_there():
    for path in _files(inside=False):
        assert not _header(_tree(path)), path


def _imported(tree):
    """Return the dotted private names that are used by imports."""
    modules, members = {}, collections.defaultdict(set)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and list(_foreign_imports(node)):
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                modules[alias.asname or alias.name] = whole
        elif _is_attribute(node) and isinstance(node.value, ast.Name):
            members[node.value.id].add(node.attr)
    return {
        name
        for known, whole in modules.items()
        for name in {f"{whole}.{m}" for m in members[known]} or {whole}
    }


@pytest.mark.parametrize("path", _files(True), ids=lambda path: path.stem)
def test_each_file_lists_the_private_names_it_uses(path, of_others):
    tree = _tree(path)
    listed, imported, own = _header(tree), _imported(tree), _defined(tree)
    ours = own - of_others
    used = imported | {
        name
        for name, of_oneself in _taken(tree)
        if name not in ours | set(NO_ATTRIBUTES)
        and not (of_oneself and name in own)
    }
    ends = {name.rsplit(".", 1)[-1] for name in listed}
    assert {name for name in used if name not in listed | ends} == set()
    words = {node.attr for node in ast.walk(tree) if _is_attribute(node)}
    words |= {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)}
    words |= {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    words |= {name.rsplit(".", 1)[-1] for name in used} | own
    assert ends - words == set(), "listed, but not used"
