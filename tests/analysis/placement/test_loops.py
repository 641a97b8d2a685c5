"""Loop turns that are read from graphs, against what really ran."""

import pytest
import tensorflow as tf

from keras_pergrad.analysis.placement import collection, graph, loops


def placed(function, *arguments):
    """Runs a function; returns its nodes and their executions."""
    with collection.collect(again=True) as collected:
        function(*arguments)
    nodes = graph.read(collection.step_partitions(collected[0]))
    executions = loops.Executions(nodes)
    counts = {}
    for node in nodes:
        if node.op in ("Sin", "Cos"):
            counts[node.op] = executions(node)
    return nodes, counts


@pytest.mark.parametrize("turns", [0, 1, 7])
def test_a_loop_of_fixed_length(turns):
    @tf.function
    def looped(x):
        return tf.while_loop(
            lambda i, _: i < turns, lambda i, x: (i + 1, tf.sin(x)), (0, x)
        )

    _, counts = placed(looped, tf.ones(3))
    assert counts.get("Sin", 0) == turns


def test_start_step_and_limit_count():
    @tf.function
    def looped(x):
        return tf.while_loop(
            lambda i, _: i <= 20, lambda i, x: (i + 3, tf.sin(x)), (2, x)
        )

    assert placed(looped, tf.ones(3))[1]["Sin"] == 7  # 2, 5, ..., 20


def test_nested_loops_multiply():
    @tf.function
    def looped(x):
        def outer(i, x):
            _, x = tf.while_loop(
                lambda j, _: j < 4, lambda j, x: (j + 1, tf.sin(x)), (0, x)
            )
            return i + 1, tf.cos(x)

        return tf.while_loop(lambda i, _: i < 3, outer, (0, x))

    assert placed(looped, tf.ones(3))[1] == {"Sin": 12, "Cos": 3}


def test_a_backward_loop_turns_as_often_as_its_forward_loop():
    @tf.function
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            _, y = tf.while_loop(
                lambda i, _: i < 5, lambda i, x: (i + 1, tf.sin(x)), (0, x)
            )
        return tape.gradient(y, x)

    assert placed(gradient, tf.ones(3))[1] == {"Sin": 5, "Cos": 5}


def test_what_depends_on_data_is_unknown():
    @tf.function
    def looped(x, n):
        _, y = tf.while_loop(
            lambda i, _: i < n, lambda i, x: (i + 1, tf.sin(x)), (0, x)
        )
        return tf.cond(tf.reduce_sum(x) > 0, lambda: tf.cos(y), lambda: y)

    _, counts = placed(looped, tf.ones(3), tf.constant(4))
    assert counts == {"Sin": None, "Cos": None}


def test_what_follows_a_branch_is_known_again():
    @tf.function
    def branched(x):
        y = tf.cond(tf.reduce_sum(x) > 0, lambda: tf.cos(x), lambda: x)
        return tf.sin(y)

    assert placed(branched, tf.ones(3))[1] == {"Cos": None, "Sin": 1}


def test_the_test_of_a_loop_runs_once_more():
    @tf.function
    def looped(x):
        return tf.while_loop(
            lambda i, _: tf.logical_and(i < 6, i < 9),
            lambda i, x: (i + 1, tf.sin(x)),
            (0, x),
        )

    with collection.collect(again=True) as collected:
        looped(tf.ones(3))
    nodes = graph.read(collection.step_partitions(collected[0]))
    executions = loops.Executions(nodes)
    assert {executions(n) for n in nodes if n.op == "LogicalAnd"} == {7}
    assert {executions(n) for n in nodes if n.op == "Sin"} == {6}
