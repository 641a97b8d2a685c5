"""Gradients under your control for Keras 3 on TensorFlow."""

import os as _os
import sys as _sys
import typing as _typing

__version__ = "0.2.0"


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
    import keras as _keras

    if _keras.backend.backend() != "tensorflow":
        raise ImportError(
            "keras_pergrad needs Keras on TensorFlow, but Keras runs on "
            f"{_keras.backend.backend()!r}. Set the environment variable "
            "KERAS_BACKEND=tensorflow before Keras is first imported (or "
            '"backend": "tensorflow" in ~/.keras/keras.json).'
        )

    # For load_model, which asks for classes by their names. All other names
    # are imported when they are first asked for.
    from keras_pergrad import gramian as _gramian  # noqa: F401
    from keras_pergrad import wrapped_model as _wrapped_model  # noqa: F401
    from keras_pergrad.analysis.batch_norm import exchange as _exchange  # noqa: F401
    from keras_pergrad.privacy import (
        clipping_variants as _clipping_variants,  # noqa: F401
    )
    from keras_pergrad.privacy import private_mean as _private_mean  # noqa: F401

if _typing.TYPE_CHECKING:
    from keras_pergrad import callbacks as callbacks
    from keras_pergrad import factors as factors
    from keras_pergrad import modes as modes
    from keras_pergrad import results as results
    from keras_pergrad import runs as runs
    from keras_pergrad import trackers as trackers
    from keras_pergrad.aggregation import (
        Aggregation,
        Mean,
        register_aggregation,
    )
    from keras_pergrad.analysis.batch_norm.replacement import (
        replace_batch_norm,
    )
    from keras_pergrad.analysis.checking.check import check_gradients
    from keras_pergrad.analysis.explain.layer_report import explain
    from keras_pergrad.analysis.explain.what_fits import what_fits
    from keras_pergrad.analysis.input_gradients import input_gradients
    from keras_pergrad.analysis.pipelines.profile import profile_pipeline
    from keras_pergrad.analysis.placement.comparison import (
        compare_devices,
    )
    from keras_pergrad.analysis.placement.prediction import predict_placement
    from keras_pergrad.clipping import ClippedMean
    from keras_pergrad.dots import per_sample_dots
    from keras_pergrad.fisher_information import fisher
    from keras_pergrad.functional import (
        gradient_statistics,
        per_sample_gradients,
        per_sample_norms,
    )
    from keras_pergrad.gramian import (
        IMTLG,
        MGDA,
        AlignedMTL,
        CAGrad,
        GeometricMedian,
        GramianAggregation,
        Krum,
        PCGrad,
        UPGrad,
    )
    from keras_pergrad.influence.attribution import Influence
    from keras_pergrad.model import PerGradModel
    from keras_pergrad.modes import (
        Accumulated,
        Batch,
        ByTask,
        GradientMode,
        PerSample,
        Vectorized,
        register_gradient_mode,
    )
    from keras_pergrad.privacy.audit import audit_privacy
    from keras_pergrad.privacy.clipping_variants import (
        AdaptiveClippedMean,
        AutomaticClippedMean,
    )
    from keras_pergrad.privacy.training import PrivateTraining
    from keras_pergrad.runs.comparison import compare_runs
    from keras_pergrad.samples import layer_rules as rules
    from keras_pergrad.samples import types as types
    from keras_pergrad.samples.layer_rules import register_rule
    from keras_pergrad.samples.types.own_rules import register_type_rule
    from keras_pergrad.statistics import GradientStatistics
else:
    from keras_pergrad.common.lazy_names import lazy as _lazy

    __getattr__ = _lazy(
        __name__,
        {
            "aggregation": ("Aggregation", "Mean", "register_aggregation"),
            "analysis.batch_norm.replacement": ("replace_batch_norm",),
            "analysis.checking.check": ("check_gradients",),
            "analysis.explain.layer_report": ("explain",),
            "analysis.explain.what_fits": ("what_fits",),
            "analysis.input_gradients": ("input_gradients",),
            "analysis.pipelines.profile": ("profile_pipeline",),
            "analysis.placement.comparison": ("compare_devices",),
            "analysis.placement.prediction": ("predict_placement",),
            "clipping": ("ClippedMean",),
            "dots": ("per_sample_dots",),
            "fisher_information": ("fisher",),
            "functional": (
                "gradient_statistics",
                "per_sample_gradients",
                "per_sample_norms",
            ),
            "gramian": (
                "AlignedMTL",
                "CAGrad",
                "GeometricMedian",
                "GramianAggregation",
                "IMTLG",
                "Krum",
                "MGDA",
                "PCGrad",
                "UPGrad",
            ),
            "influence.attribution": ("Influence",),
            "model": ("PerGradModel",),
            "modes": (
                "Accumulated",
                "Batch",
                "ByTask",
                "GradientMode",
                "PerSample",
                "Vectorized",
                "register_gradient_mode",
            ),
            "privacy.audit": ("audit_privacy",),
            "privacy.clipping_variants": (
                "AdaptiveClippedMean",
                "AutomaticClippedMean",
            ),
            "privacy.training": ("PrivateTraining",),
            "runs.comparison": ("compare_runs",),
            "samples.layer_rules": ("register_rule",),
            "samples.types.own_rules": ("register_type_rule",),
            "statistics": ("GradientStatistics",),
        },
        modules={
            "callbacks": "callbacks",
            "factors": "factors",
            "modes": "modes",
            "results": "results",
            "rules": "samples.layer_rules",
            "runs": "runs",
            "trackers": "trackers",
            "types": "samples.types",
        },
    )

__all__ = [
    "IMTLG",
    "MGDA",
    "Accumulated",
    "AdaptiveClippedMean",
    "Aggregation",
    "AlignedMTL",
    "AutomaticClippedMean",
    "Batch",
    "ByTask",
    "CAGrad",
    "ClippedMean",
    "GeometricMedian",
    "GradientMode",
    "GradientStatistics",
    "GramianAggregation",
    "Influence",
    "Krum",
    "Mean",
    "PCGrad",
    "PerGradModel",
    "PerSample",
    "PrivateTraining",
    "UPGrad",
    "Vectorized",
    "audit_privacy",
    "callbacks",
    "check_gradients",
    "compare_devices",
    "compare_runs",
    "explain",
    "factors",
    "fisher",
    "gradient_statistics",
    "input_gradients",
    "modes",
    "per_sample_dots",
    "per_sample_gradients",
    "per_sample_norms",
    "predict_placement",
    "profile_pipeline",
    "register_aggregation",
    "register_gradient_mode",
    "register_rule",
    "register_type_rule",
    "replace_batch_norm",
    "results",
    "rules",
    "runs",
    "trackers",
    "types",
    "what_fits",
]


def __dir__():
    return [*__all__, "__version__"]
