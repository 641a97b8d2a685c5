"""WRN-16-4 and BERT in torch, of layers that Opacus knows."""

import torch
from torch import nn

from benchmarks.harness.large_models import MODELS


def build_model(name):
    """Return a model of ids or images that returns logits."""
    torch.manual_seed(0)
    large = MODELS[name]
    return Bert(large) if name == "bert" else wrn(large)


class Residual(nn.Module):
    """Two convolutions, each after a group norm, beside a shortcut."""

    def __init__(self, channels, width, stride):
        super().__init__()
        self.first = nn.GroupNorm(16, channels)
        self.conv1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.second = nn.GroupNorm(16, width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.shortcut = None
        if channels != width:
            self.shortcut = nn.Conv2d(channels, width, 1, stride, bias=False)

    def forward(self, x):
        h = torch.relu(self.first(x))
        shortcut = x if self.shortcut is None else self.shortcut(h)
        h = torch.relu(self.second(self.conv1(h)))
        return shortcut + self.conv2(h)


def wrn(large):
    parts, channels = [nn.Conv2d(3, 16, 3, 1, 1, bias=False)], 16
    for width, stride in ((64, 1), (128, 2), (256, 2)):
        parts.append(Residual(channels, width, stride))
        parts.append(Residual(width, width, 1))
        channels = width
    parts += [nn.GroupNorm(16, channels), nn.ReLU()]
    parts += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*parts, nn.Linear(channels, large.classes))


class Bert(nn.Module):
    """Embeddings, attention blocks with norms behind them, a pooled head."""

    def __init__(self, large):
        super().__init__()
        from benchmarks.peers.torch_models import Block

        encoder = large.encoder
        width = encoder.width
        self.tokens = nn.Embedding(large.vocabulary, width)
        self.positions = nn.Embedding(large.inputs[0], width)
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.Sequential(
            *(
                Block(width, encoder.heads, encoder.inner)
                for _ in range(encoder.layers)
            )
        )
        self.pooler = nn.Linear(width, width)
        self.logits = nn.Linear(width, large.classes)

    def forward(self, ids):
        positions = torch.arange(ids.shape[1], device=ids.device)
        positions = positions.expand(ids.shape)
        x = self.norm(self.tokens(ids) + self.positions(positions))
        x = self.blocks(x)[:, 0]
        return self.logits(torch.tanh(self.pooler(x)))
