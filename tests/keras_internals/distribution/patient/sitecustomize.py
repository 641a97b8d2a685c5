"""Workers that wait for each other for as long as a machine pauses.

Python imports this by itself where this folder is in PYTHONPATH. TensorFlow
gives up a worker that it has not heard of for ten seconds, and has no public
setting for that.
"""

import os

A_DAY = 24 * 60 * 60 * 1000  # milliseconds

if "TF_CONFIG" in os.environ:
    from tensorflow.python.eager.context import Context

    _configure = Context.configure_coordination_service

    def _patiently(self, *arguments, **settings):
        settings |= {
            "cluster_register_timeout_in_ms": A_DAY,
            "heartbeat_timeout_in_ms": A_DAY,
            "shutdown_barrier_timeout_in_ms": A_DAY,
        }
        return _configure(self, *arguments, **settings)

    Context.configure_coordination_service = _patiently
