"""Gradients under your control for Keras 3 on TensorFlow.

    import keras_pergrad as kpg

Train: `PerGradModel` is a `keras.Model` with `compile(..., gradient_mode=)`:
`Batch`, `Vectorized`, `PerSample`, `Accumulated` or `ByTask`, with a
`ClippedMean` or another aggregation. `PrivateTraining` gives differential
privacy, and `replace_batch_norm` a model without BatchNormalization.

Ask, of any compiled `keras.Model`: `per_sample_gradients`, `per_sample_norms`,
`per_sample_dots`, `gradient_statistics`, `input_gradients`, `explain` and
`check_gradients`.

More stands in `aggregations`, `callbacks`, `diagnose`, `extending`,
`influence`, `modes`, `privacy`, `runs` and `trackers`. `dir()` of each lists
its names. All other folders below are inner workings.
"""

import os as _os
import sys as _sys

from keras_pergrad.common.lazy_names import lazy as _lazy

__version__ = "1.0.0rc1"


def _is_command():
    """Whether this is `keras-pergrad`, or `-m keras_pergrad` is looked for."""
    # `doctor` explains why TensorFlow does not load, so it must not load it.
    # Everything else does, for `load_model` to know the classes. (While Python
    # locates a module for -m, argv[0] is "-m"; orig_argv names the module.)
    program = _os.path.basename(_sys.argv[0]) if _sys.argv else ""
    if _os.path.splitext(program)[0] == "keras-pergrad":
        return True
    if _sys.argv[:1] != ["-m"] or "-m" not in _sys.orig_argv:
        return False
    module = _sys.orig_argv[_sys.orig_argv.index("-m") + 1]
    return module.partition(".")[0] == __name__


if not _is_command():
    _OTHER_BACKEND = (
        "keras_pergrad needs Keras on TensorFlow, but Keras runs on {!r}. Set "
        "the environment variable KERAS_BACKEND=tensorflow before Keras is "
        'first imported (or "backend": "tensorflow" in ~/.keras/keras.json).'
    )
    try:
        import keras as _keras
    except ImportError as _error:  # of a backend that is not installed
        _backend = _os.environ.get("KERAS_BACKEND", "tensorflow")
        if _backend == "tensorflow":
            raise
        raise ImportError(_OTHER_BACKEND.format(_backend)) from _error

    if _keras.backend.backend() != "tensorflow":
        raise ImportError(_OTHER_BACKEND.format(_keras.backend.backend()))

    # For load_model, which asks for classes by their names. All other names
    # are imported when they are first asked for.
    from keras_pergrad import aggregations as _aggregations  # noqa: F401
    from keras_pergrad import model as _model  # noqa: F401
    from keras_pergrad import multitask as _multitask  # noqa: F401
    from keras_pergrad.privacy import (
        clipping_variants as _clipping_variants,  # noqa: F401
    )
    from keras_pergrad.privacy import (
        corrected_adam as _corrected_adam,  # noqa: F401
    )
    from keras_pergrad.privacy import private_mean as _private_mean  # noqa: F401

__getattr__, __dir__, __all__ = _lazy(__name__, __file__)
