"""Trackers: where the readings of a `fit` are written."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keras_pergrad.trackers.html_page import Page
    from keras_pergrad.trackers.services import MLflow, TensorBoard, WandB
    from keras_pergrad.trackers.tracker import Tracker
else:
    from keras_pergrad.common.lazy_names import lazy

    __getattr__ = lazy(
        __name__,
        {
            "html_page": ("Page",),
            "services": ("MLflow", "TensorBoard", "WandB"),
            "tracker": ("Tracker",),
        },
    )

__all__ = ["MLflow", "Page", "TensorBoard", "Tracker", "WandB"]


def __dir__():
    return __all__
