"""A machine that looks for wrong per-sample gradients in random models."""
