"""Trackers: where the readings of a `fit` are written."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keras_pergrad.trackers.html_page import Page
    from keras_pergrad.trackers.mlflow import MLflow
    from keras_pergrad.trackers.tensorboard import TensorBoard
    from keras_pergrad.trackers.tracker import Tracker
    from keras_pergrad.trackers.wandb import WandB
else:
    from keras_pergrad.common.lazy_names import lazy

    __getattr__ = lazy(
        __name__,
        {
            "html_page": ("Page",),
            "mlflow": ("MLflow",),
            "tensorboard": ("TensorBoard",),
            "tracker": ("Tracker",),
            "wandb": ("WandB",),
        },
    )

__all__ = ["MLflow", "Page", "TensorBoard", "Tracker", "WandB"]


def __dir__():
    return __all__
