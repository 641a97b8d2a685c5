"""TorchJD's step by task, on the trunks of `benchmarks.steps.by_task`."""

import itertools

import numpy as np
import torch
from torch import nn
from torchjd.aggregation import UPGrad
from torchjd.autojac import jac_to_grad, mtl_backward

from benchmarks.harness.job import Job


def build(trunk, tasks, threads, *, chunk):
    """Return the `Job` of a step by Adam with `UPGrad`.

    `chunk` is how many gradients go through the trunk at a time; None: all.
    """
    torch.manual_seed(0)
    layers, width, shape = TRUNKS[trunk]()
    heads = nn.ModuleList([nn.Linear(width, 4) for _ in range(tasks)])
    rng = np.random.default_rng(0)
    x = torch.tensor(rng.normal(size=shape), dtype=torch.float32)
    y = [
        torch.tensor(rng.normal(size=(shape[0], 4)), dtype=torch.float32)
        for _ in range(tasks)
    ]
    weights = [*layers.parameters(), *heads.parameters()]
    optimizer = torch.optim.Adam(weights)
    loss, aggregator = nn.MSELoss(), UPGrad()

    def step():
        torch.set_num_threads(threads)
        optimizer.zero_grad()
        features = layers(x)
        losses = [loss(head(features), t) for head, t in zip(heads, y)]
        mtl_backward(losses, features=features, parallel_chunk_size=chunk)
        jac_to_grad(layers.parameters(), aggregator)
        optimizer.step()

    return Job(step, lambda: [w.detach().numpy() for w in weights])


def _dense():
    sizes = [256, 512, 512, 512, 512]
    parts = []
    for i, o in itertools.pairwise(sizes):
        parts += [nn.Linear(i, o), nn.ReLU()]
    return nn.Sequential(*parts), 512, (128, 256)


def _convolutional():
    parts, before = [], 3
    for channels in (16, 32, 32):
        parts += [
            nn.Conv2d(before, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
        before = channels
    return nn.Sequential(*parts, nn.Flatten()), 512, (64, 3, 32, 32)


class _Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(32, 64, batch_first=True)

    def forward(self, x):
        return self.lstm(x)[0][:, -1]


def _recurrent():
    return _Recurrent(), 64, (64, 32, 32)


class _Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(64, 4, batch_first=True)
        self.first, self.second = nn.LayerNorm(64), nn.LayerNorm(64)
        self.dense = nn.Sequential(
            nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)
        )

    def forward(self, x):
        x = self.first(x + self.attention(x, x, x, need_weights=False)[0])
        return self.second(x + self.dense(x))


class _Mean(nn.Module):
    def forward(self, x):
        return x.mean(1)


def _attention():
    parts = nn.Sequential(_Block(), _Block(), _Mean())
    return parts, 64, (32, 32, 64)


TRUNKS = {
    "dense": _dense,
    "convolutional": _convolutional,
    "recurrent": _recurrent,
    "attention": _attention,
}
