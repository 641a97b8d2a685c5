"""Which training samples helped or hurt a prediction: influence."""

from keras_pergrad.influence.attribution import Influence

__all__ = ["Influence"]
