"""Functions of a model and a batch: gradients, norms, products."""
