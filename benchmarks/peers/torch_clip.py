"""What the torch peers leave to the user: clipping and the update."""

import torch

from benchmarks.harness.job import CLIP_NORM, LEARNING_RATE


@torch.no_grad()
def apply_clipped(parameters, gradients):
    """One SGD step with the mean of clipped per-sample gradients.

    Args:
        parameters: the tensors to change.
        gradients: their per-sample gradients, each (n, *shape).
    """
    n = len(gradients[0])
    norms = torch.stack([g.reshape(n, -1).norm(dim=1) for g in gradients])
    factors = (CLIP_NORM / norms.norm(dim=0).clamp(min=CLIP_NORM)) / n
    for parameter, gradient in zip(parameters, gradients):
        total = torch.einsum("n,n...->...", factors, gradient)
        parameter.sub_(LEARNING_RATE * total)
