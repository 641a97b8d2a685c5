from keras_pergrad.trackers.services import MLflow as MLflow
from keras_pergrad.trackers.services import TensorBoard as TensorBoard
from keras_pergrad.trackers.services import WandB as WandB
from keras_pergrad.trackers.tracker import Tracker as Tracker
