"""The rule of look-ups in a table."""

import tensorflow as tf

from keras_pergrad.factors import Rows
from keras_pergrad.samples.op_rules import op_rule


@op_rule("GatherV2", "ResourceGather")
def gather(use, input_index):
    """Return the factor of the table: row ids[t] receives dz[t]."""
    inputs = use.op.inputs
    if input_index != 0:
        return "its indices are of weights"
    if use.attribute("batch_dims"):
        return "it has batch_dims"
    if use.type == "GatherV2" and tf.get_static_value(inputs[2]) != 0:
        return "its axis is not the first"
    shape = _table_shape(use)
    if shape is None or None in shape:
        return "the shape of the table is not known"
    layout = use.layout
    if layout.axis >= inputs[1].shape.rank:
        return "the table has an axis for the samples"
    ids = layout.first(inputs[1], use.n)
    dz = use.delta(use.dtype(input_index))
    columns = 1
    for s in shape[1:]:
        columns *= s
    known = positions = ids.shape[1:].num_elements()
    if positions is None:
        positions = tf.reduce_prod(tf.shape(ids)[1:])
    ids = tf.reshape(ids, [use.n, positions])
    dz = tf.reshape(dz, [use.n, positions, columns])
    dz.set_shape([None, known, columns])
    ids.set_shape([None, known])
    return Rows(ids, dz, [shape[0], columns], whole=shape)


def _table_shape(use):
    if use.type == "ResourceGather":
        k = use.variables_in(0)[0]
        return list(use.variables[k].shape)
    return use.op.inputs[0].shape.as_list()
