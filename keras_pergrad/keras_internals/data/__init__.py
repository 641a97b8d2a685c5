"""Data sets, loaders and their batches."""
