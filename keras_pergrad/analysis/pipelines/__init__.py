"""Input pipelines: what the model waited for, why, and what would help."""
