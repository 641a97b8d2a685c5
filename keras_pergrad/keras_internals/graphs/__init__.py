"""The graphs of traced functions."""
