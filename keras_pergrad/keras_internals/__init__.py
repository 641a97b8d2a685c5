"""Keras's private parts, and what all packages share."""
