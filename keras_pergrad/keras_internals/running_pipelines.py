"""The account that a running pipeline of `tf.data` gives of itself.

Private name in use: `tensorflow.core.framework.model_pb2.ModelProto`.
"""

from tensorflow.core.framework import model_pb2


def running_model(text):
    """Return the `ModelProto` that a running pipeline is described by."""
    return model_pb2.ModelProto.FromString(text)
