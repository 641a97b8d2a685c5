"""The benchmark models in torch, of layers that every torch peer knows."""

import os

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.harness import large_models, models
from benchmarks.harness.models import SPECS, make_weights
from benchmarks.harness.process import GPU
from benchmarks.peers import torch_large

DEVICE = "cuda" if GPU in os.environ and torch.cuda.is_available() else "cpu"


def build_model(name, recurrent=nn.LSTM):
    """A model with the common weights that returns logits.

    Args:
        name: which model.
        recurrent: the class of LSTM layers, with the interface of nn.LSTM.
    """
    if name in large_models.MODELS:
        return torch_large.build_model(name).to(DEVICE)
    spec = SPECS[name]
    if name == "lstm":
        model = Recurrent(spec, recurrent)
    else:
        model = _BODIES[name](spec)
    arrays = [torch.tensor(w) for w in make_weights(name)]
    with torch.no_grad():
        parts = set()
        for module in model.modules():
            if isinstance(module, recurrent):
                _load_lstm(module, arrays)
                parts.update(module.modules())
            elif isinstance(module, tuple(_LOADERS)) and module not in parts:
                _load(module, arrays)
    assert not arrays, f"{len(arrays)} weights of {name} have no layer"
    return model.to(DEVICE)


def make_batch(name, n):
    """Return a batch of any of the models, as arrays."""
    is_large = name in large_models.MODELS
    return (large_models if is_large else models).make_batch(name, n)


def make_loss(name, reduction="mean"):
    """Softmax cross-entropy; of two classes for a single logit."""
    if _has_one_logit(name):
        return nn.BCEWithLogitsLoss(reduction=reduction)
    return nn.CrossEntropyLoss(reduction=reduction)


def targets(name, y):
    y = torch.tensor(y, device=DEVICE)
    return y.float() if _has_one_logit(name) else y.long()


def _has_one_logit(name):
    return name in SPECS and SPECS[name].outputs == 1


def inputs(x):
    """Images as torch wants them: channels first, also in memory.

    Opacus 1.6 gives wrong convolution gradients for channels-last strides.
    """
    if x.ndim == 4:
        x = np.moveaxis(x, -1, 1).copy(order="C")
    return torch.tensor(x, device=DEVICE)


class ChannelsLast(nn.Module):
    """Makes Flatten order the numbers as in the other frameworks."""

    def forward(self, x):
        return x.permute(0, 2, 3, 1)


class DropLast(nn.Module):
    """A single logit without an axis of its own, which Opacus's loss needs."""

    def forward(self, x):
        return x.squeeze(-1)


class MeanOver(nn.Module):
    """The mean over some axes."""

    def __init__(self, *axes):
        super().__init__()
        self.axes = axes

    def forward(self, x):
        return x.mean(self.axes)


class Recurrent(nn.Module):
    """Embedding, LSTM, mean over time, logits."""

    def __init__(self, spec, recurrent):
        super().__init__()
        self.embedding = nn.Embedding(spec.vocabulary, 100)
        self.recurrent = recurrent(100, 100, batch_first=True)
        self.logits = nn.Linear(100, spec.outputs)

    def forward(self, x):
        outputs, _ = self.recurrent(self.embedding(x))
        return self.logits(outputs.mean(1))


class Attention(nn.Module):
    """Self-attention of linear layers, which every peer can differentiate."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)

    def forward(self, x):
        n, t, width = x.shape
        q, k, v = (
            layer(x).reshape(n, t, self.heads, -1).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        scores = q @ k.transpose(2, 3) / (width // self.heads) ** 0.5
        mixed = torch.softmax(scores, -1) @ v
        return self.output(mixed.transpose(1, 2).reshape(n, t, width))


class Block(nn.Module):
    """Attention and a feed-forward part, each followed by normalisation."""

    def __init__(self, width, heads, hidden):
        super().__init__()
        self.attention = Attention(width, heads)
        self.first = nn.LayerNorm(width, eps=1e-3)
        self.wide = nn.Linear(width, hidden)
        self.narrow = nn.Linear(hidden, width)
        self.second = nn.LayerNorm(width, eps=1e-3)

    def forward(self, x):
        x = self.first(x + self.attention(x))
        return self.second(x + self.narrow(F.relu(self.wide(x))))


def _logreg(spec):
    return nn.Sequential(nn.Linear(spec.inputs[0], spec.outputs), DropLast())


def _ffnn(spec):
    return nn.Sequential(
        nn.Linear(784, 50), nn.ReLU(), nn.Linear(50, spec.outputs)
    )


def _mnist(spec):
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        ChannelsLast(),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.ReLU(),
        nn.Linear(32, spec.outputs),
    )


def _cifar10(spec):
    parts, last = [], 3
    for width in (32, 64, 128):
        for _ in range(2):
            parts += [nn.Conv2d(last, width, 3, padding=1), nn.ReLU()]
            last = width
        parts.append(nn.AvgPool2d(2))
    parts += [nn.Conv2d(last, 256, 3, padding=1), nn.ReLU()]
    parts += [nn.Conv2d(256, spec.outputs, 3, padding=1), MeanOver(2, 3)]
    return nn.Sequential(*parts)


def _digits(spec):
    parts = []
    for i, o in ((1, 8), (8, 16)):
        parts += [nn.Conv2d(i, o, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2)]
    return nn.Sequential(
        *parts, ChannelsLast(), nn.Flatten(), nn.Linear(64, spec.outputs)
    )


def _embed(spec):
    return nn.Sequential(
        nn.Embedding(spec.vocabulary, 16),
        MeanOver(1),
        nn.Linear(16, spec.outputs),
    )


def _transformer(spec):
    return nn.Sequential(
        nn.Embedding(spec.vocabulary, 128),
        Block(128, 4, 512),
        Block(128, 4, 512),
        MeanOver(1),
        nn.Linear(128, spec.outputs),
    )


_BODIES = {
    "logreg": _logreg,
    "ffnn": _ffnn,
    "mnist": _mnist,
    "cifar10": _cifar10,
    "digits": _digits,
    "embed": _embed,
    "transformer": _transformer,
}


def _linear(kernel, module):
    return kernel.reshape(module.in_features, -1).T


#: How each layer's kernel is made of the common one.
_LOADERS = {
    nn.Linear: _linear,
    nn.Conv2d: lambda kernel, module: kernel.permute(3, 2, 0, 1),
    nn.Embedding: lambda kernel, module: kernel,
    nn.LayerNorm: lambda kernel, module: kernel,
}


def _load(module, arrays):
    convert = next(f for c, f in _LOADERS.items() if isinstance(module, c))
    module.weight.copy_(convert(arrays.pop(0), module))
    if getattr(module, "bias", None) is not None:
        module.bias.copy_(arrays.pop(0).reshape(-1))


def _load_lstm(module, arrays):
    """The common bias becomes the first of the two that torch has."""
    parts = {
        "weight_ih": arrays.pop(0).T,
        "weight_hh": arrays.pop(0).T,
        "bias_ih": arrays.pop(0),
    }
    for name, parameter in module.named_parameters():
        kind = name.rsplit("_l0", 1)[0]
        parameter.copy_(parts.get(kind, torch.zeros(())))
