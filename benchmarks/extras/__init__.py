"""Influence, information about samples, private training."""
