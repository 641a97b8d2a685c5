"""Gradient health: what a measurement says about a training."""
