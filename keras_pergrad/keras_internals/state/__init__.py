"""The state of a model: saved, restored, kept."""
