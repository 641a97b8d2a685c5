"""Advice on this machine: whether it can train, where, and what to install.

Nothing here imports TensorFlow, but for the probes, which run in processes
of their own: a wrong pair of versions makes the import itself fail or abort.
"""
