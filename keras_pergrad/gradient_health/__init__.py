"""The spread and the health of gradients during training."""
