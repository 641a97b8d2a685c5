"""Marks for parameters of tests."""

import fnmatch

import pytest


def few(values, quick, slow=None, *, killers=()):
    """Return parameters of which all but a few are slow tests.

    Args:
        values: the parameters; a tuple is one for several arguments.
        quick: those that are tried with every change.
        slow: those of the others that CI tries, too: all if None. What is
            left is exhaustive.
        killers: those of `quick` without which mutants survive.
    """
    slow = values if slow is None else slow
    left = (set(quick) | set(slow)) - set(values)
    assert not left, f"{left} are no parameters"

    def marked(value):
        if value in killers:
            mark = pytest.mark.quick
        elif value in quick:
            return value
        else:
            mark = pytest.mark.slow if value in slow else pytest.mark.exhaustive
        arguments = value if isinstance(value, tuple) else (value,)
        return pytest.param(*arguments, marks=mark)

    return [marked(value) for value in values]


#: What needs no GPU, or is about a machine without one. `*` is any path.
CPU_ONLY = (
    # The placement of a step on a machine without one, and the stand-in.
    "placement/*",
    "*test_on_stand_in.py",
    "common/test_devices.py",
    "doctor/*",
    # Clocks of the host, and stages of a pipeline that has no copy.
    "stalls/*",
    # Kernels of the CPU.
    "keras_internals/test_onednn.py",
    "modes/test_matmul_defect.py",
    "explanation/test_memory.py",
    # Processes and devices made of the CPU.
    "keras_internals/distribution/*",
    "keras_internals/test_strategies.py",
    "privacy/test_replicas.py",
    # Text, files and pages.
    "runs/*",
    "trackers/*",
    "hunt/*",
    "test_architecture.py",
    "test_benchmarks.py",
    "test_docstrings.py",
    "test_documentation.py",
    "test_examples.py",
    "test_links.py",
    "test_mutants.py",
    "test_one_owner.py",
    "test_private_names.py",
    "test_private_parts.py",
    "test_prose.py",
    "test_reference.py",
)


def is_cpu_only(path):
    """Whether tests of a file, relative to this folder, need no GPU."""
    return any(fnmatch.fnmatch(path, pattern) for pattern in CPU_ONLY)
