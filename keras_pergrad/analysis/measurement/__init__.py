"""Measurements of the gradient on a fixed batch, and their record."""
