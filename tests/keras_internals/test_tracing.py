import pytest
import tensorflow as tf

from keras_pergrad.keras_internals.tracing import graphs_not_optimized

OFF = "disable_meta_optimizer"


def _off():
    return tf.config.optimizer.get_experimental_options().get(OFF, False)


@pytest.mark.parametrize("before", [False, True])
def test_the_optimizer_of_graphs_is_as_before(before):
    tf.config.optimizer.set_experimental_options({OFF: before})
    try:
        with graphs_not_optimized(), graphs_not_optimized():
            assert _off()
        assert _off() == before
        with pytest.raises(ZeroDivisionError), graphs_not_optimized():
            raise ZeroDivisionError
        assert _off() == before
    finally:
        tf.config.optimizer.set_experimental_options({OFF: False})


def test_other_settings_of_the_optimizer_are_kept():
    tf.config.optimizer.set_experimental_options({"remapping": False})
    try:
        with graphs_not_optimized():
            pass
        found = tf.config.optimizer.get_experimental_options()
        assert found["remapping"] is False
    finally:
        tf.config.optimizer.set_experimental_options({"remapping": True})


def test_functions_compute_the_same_without_it():
    double = tf.function(lambda x: 2.0 * x + 0.0)
    with graphs_not_optimized():
        assert double(tf.constant(3.0)) == 6.0
    assert double(tf.constant(3.0)) == 6.0
