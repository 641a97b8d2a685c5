"""Data sets and loaders, and several views of a sample."""
