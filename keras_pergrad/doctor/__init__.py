"""Advice on this machine: whether it can train, where, and what to install.

Only the probes import TensorFlow, and they run in processes of their own: a
wrong pair of versions makes the import itself fail or abort.
"""
