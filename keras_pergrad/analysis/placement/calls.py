"""Nodes that run a function whose ops are not in their own graph.

TensorFlow inlines most functions before it hands the graphs over. Where it
does not (a function marked so, or compiled by XLA), one node stands for all
ops inside: to count it as one op would be wrong.
"""

XLA, CALL = "XLA", "call"
_CALLS = {"PartitionedCall", "StatefulPartitionedCall"}
_XLA = ("XlaLaunch", "_XlaCompile", "_XlaRun")
# The functions of a data pipeline are run by the pipeline, not by the node.
_PIPELINES = ("Dataset", "DatasetV2", "DatasetV3", "DatasetV4")


def kind(definition, functions=()):
    """Return what hides behind a `NodeDef`: `"XLA"`, `"call"` or `""`."""
    op, attr = definition.op, definition.attr
    if op.endswith(_PIPELINES):
        return ""
    if op in _XLA or must_compile(attr):
        return XLA
    called = op in _CALLS or op in functions
    return CALL if called or any(map(_holds_function, attr.values())) else ""


def must_compile(attr):
    """Whether the attributes of a node or function ask for XLA."""
    return "_XlaMustCompile" in attr and attr["_XlaMustCompile"].b


def _holds_function(value):
    # "func" for one, as in While; a list of them for Case.
    return value.WhichOneof("value") == "func" or bool(value.list.func)
