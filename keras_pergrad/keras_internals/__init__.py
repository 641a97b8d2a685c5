"""Keras's private parts."""
