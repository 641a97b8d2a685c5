"""Devices: the present one, NVIDIA's cards, and placed ops.

Private names in use: `tensorflow.python.eager.context.context`, with
`Context.device_name`, `export_run_metadata`, `function_call_options`,
`ensure_initialized`, `enable_graph_collection`, `disable_graph_collection`;
`tensorflow.python.eager.context.eager_mode`,
`tensorflow.python.eager.context.FunctionCallOptions`.
"""

import contextlib
import time

import tensorflow as tf
from tensorflow.python.eager import context as eager_context

_TIMEOUT_MS = 300_000


def current_device():
    """Return the name of the device of `tf.device` around, "" without one."""
    return eager_context.context().device_name or ""


def has_cuda_card():
    """Whether an NVIDIA card is visible; those of plugins and AMD are none."""
    cards = tf.config.get_visible_devices("GPU")
    return any(compute_capability(card) is not None for card in cards)


def compute_capability(physical):
    """Return that of an NVIDIA card as (major, minor); None of others."""
    details = tf.config.experimental.get_device_details(physical)
    return details.get("compute_capability")


def eagerly():
    """Return a context manager inside of which ops run at once."""
    return eager_context.eager_mode()


@contextlib.contextmanager
def placed_graphs(place_anew):
    """Yield a list that gets the `RunMetadata` when the block ends."""
    # Collection is one flag for the whole process, and an export drains what
    # was collected: do not nest. `place_anew`: a placement is cached under its
    # configuration. An equal one with another timeout misses the cache, so that
    # functions are placed again, without being traced again.
    context = eager_context.context()
    context.ensure_initialized()
    options = context.function_call_options
    metadata = []
    if place_anew:
        config = tf.compat.v1.ConfigProto.FromString(
            options.config_proto_serialized
        )
        rewrite = config.graph_options.rewrite_options
        rewrite.meta_optimizer_timeout_ms = (
            _TIMEOUT_MS + time.monotonic_ns() % 1_000_003
        )
        context.function_call_options = eager_context.FunctionCallOptions(
            executor_type=options.executor_type, config_proto=config
        )
    context.enable_graph_collection()
    context.export_run_metadata()  # what others left there
    try:
        yield metadata
    finally:
        metadata.append(context.export_run_metadata())
        context.disable_graph_collection()
        context.function_call_options = options
