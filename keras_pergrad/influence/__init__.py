"""Influence: the training samples that helped or hurt a prediction."""

from keras_pergrad.influence.attribution import Influence

__all__ = ["Influence"]
