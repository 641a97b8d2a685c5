"""Sums of squared gradients by BackPACK and curvlinops, for `fisher.py`.

Run as `python -m benchmarks.peers.torch_fisher out.npz rounds model ...`.
"""

import sys

import backpack
import curvlinops
import numpy as np
import torch
from backpack import extensions
from backpack.custom_module.permute import Permute

from benchmarks.harness.models import make_batch
from benchmarks.harness.turns import milliseconds
from benchmarks.peers.torch_models import (
    ChannelsLast,
    build_model,
    inputs,
    make_loss,
    targets,
)

BATCH = 64
#: A model of more weights has no matrix of all of them.
MOST = 4000


def _in_keras_layout(array):
    array = np.asarray(array.detach())
    return array.transpose(2, 3, 1, 0) if array.ndim == 4 else array.T


def _with_backpack(model, extension):
    """Return a function of no arguments, and the name of what it leaves."""
    x, y = make_batch(model, BATCH)
    x, y = inputs(x), targets(model, y)
    net = build_model(model)
    for k, module in enumerate(net):
        if isinstance(module, ChannelsLast):
            net[k] = Permute(0, 2, 3, 1)  # which BackPACK knows
    net = backpack.extend(net)
    loss = backpack.extend(make_loss(model, reduction="sum"))

    def ask():
        net.zero_grad()
        with backpack.backpack(extension):
            loss(net(x), y).backward()
        return [getattr(p, extension.savefield) for p in net.parameters()]

    return ask


def _with_curvlinops(model):
    """The diagonal of the empirical Fisher, by products with all columns."""
    x, y = make_batch(model, BATCH)
    x, y = inputs(x), targets(model, y)
    net = build_model(model)
    parameters = list(net.parameters())
    size = sum(p.numel() for p in parameters)
    if size > MOST:
        return None

    def ask():
        matrix = curvlinops.EFLinearOperator(
            net,
            make_loss(model, reduction="sum"),
            parameters,
            [(x, y)],
            check_deterministic=False,
        )
        diagonal = torch.diag(matrix @ torch.eye(size))
        parts = torch.split(diagonal, [p.numel() for p in parameters])
        return [part.reshape(p.shape) for part, p in zip(parts, parameters)]

    return ask


def main(out, rounds, *models):
    torch.set_num_threads(2)
    found = {}
    for model in models:
        ways = {
            "BackPACK, squares": (
                _with_backpack(model, extensions.SumGradSquared()),
                int(rounds),
            ),
            "BackPACK, DiagGGNMC": (
                _with_backpack(model, extensions.DiagGGNMC()),
                int(rounds),
            ),
            "curvlinops, matrix": (_with_curvlinops(model), 1),
        }
        for name, (ask, turns) in ways.items():
            if ask is None:
                continue
            try:
                values = ask()
            except Exception as error:
                print(f"{model}, {name}: {type(error).__name__}: {error}")
                continue
            key = f"{model}|{name}"
            found[f"{key}|ms"] = np.median(
                [milliseconds(ask) for _ in range(turns)]
            )
            for k, value in enumerate(values):
                found[f"{key}|{k}"] = _in_keras_layout(value)
    np.savez(out, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
