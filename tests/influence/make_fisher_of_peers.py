"""Records what BackPACK and curvlinops give, for test_fisher.py.

    pip install torch==2.13.0 backpack-for-pytorch==1.7.1 \
        curvlinops-for-pytorch==3.0.1
    python tests/influence/make_fisher_of_peers.py

Arrays are written in the layout of Keras.
"""

import json
import pathlib

import backpack
import curvlinops
import numpy as np
import torch
from backpack import extensions

SAMPLES = 6


class Turned(torch.nn.Module):
    """Channels last before a flatten, as Keras has them."""

    def forward(self, x):
        return x.permute(0, 2, 3, 1)


def _dense():
    return torch.nn.Sequential(
        torch.nn.Linear(5, 4), torch.nn.Sigmoid(), torch.nn.Linear(4, 3)
    ), (5,)


def _convolution():
    return torch.nn.Sequential(
        torch.nn.Conv2d(2, 3, 3),
        torch.nn.Sigmoid(),
        torch.nn.Flatten(),
        torch.nn.Linear(48, 3),
    ), (2, 6, 6)


def _to_keras(array, after_flatten):
    """Return a weight, or its Fisher diagonal, in the layout of Keras."""
    if array.ndim == 4:
        return array.transpose(2, 3, 1, 0)
    if array.ndim == 2 and after_flatten:
        channels_first = array.reshape(len(array), 3, 4, 4)
        array = channels_first.transpose(0, 2, 3, 1).reshape(len(array), -1)
    return array.T


def _record(make):
    torch.manual_seed(0)
    model, shape = make()
    x = torch.randn(SAMPLES, *shape)
    y = torch.randint(0, 3, (SAMPLES,))
    mean = torch.nn.CrossEntropyLoss()
    flat = any(isinstance(m, torch.nn.Flatten) for m in model)

    def listed(arrays):
        return [
            _to_keras(
                np.asarray(a.detach()), flat and a.shape[-1] == 48
            ).tolist()
            for a in arrays
        ]

    # curvlinops: the empirical Fisher as a matrix, by products with columns.
    parameters = dict(model.named_parameters())
    empirical = curvlinops.EFLinearOperator(
        model,
        mean,
        list(parameters.values()),
        [(x, y)],
        check_deterministic=False,
    )
    size = sum(p.numel() for p in parameters.values())
    diagonal = torch.diag(empirical @ torch.eye(size))
    parts = torch.split(diagonal, [p.numel() for p in parameters.values()])
    of_curvlinops = [
        part.reshape(p.shape) for part, p in zip(parts, parameters.values())
    ]
    # BackPACK: the sum of squares of 1/n of each, so n of it is the mean.
    backpack.extend(model)
    loss = backpack.extend(torch.nn.CrossEntropyLoss())
    with backpack.backpack(extensions.SumGradSquared()):
        loss(model(x), y).backward()
    of_backpack = [SAMPLES * p.sum_grad_squared for p in model.parameters()]
    inputs = np.asarray(x)
    if inputs.ndim == 4:
        inputs = inputs.transpose(0, 2, 3, 1)
    return {
        "x": inputs.tolist(),
        "y": y.tolist(),
        "weights": listed(model.parameters()),
        "backpack": listed(of_backpack),
        "curvlinops": listed(of_curvlinops),
    }


def main():
    recorded = {
        "peers": ["backpack", "curvlinops"],
        "cases": {
            "dense": _record(_dense),
            "convolution": _record(_convolution),
        },
    }
    path = pathlib.Path(__file__).parent / "fisher_of_peers.json"
    path.write_text(json.dumps(recorded) + "\n")


if __name__ == "__main__":
    main()
