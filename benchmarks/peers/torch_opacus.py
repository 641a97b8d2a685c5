"""Opacus: per-sample gradients by hooks, and ghost clipping."""

import warnings

import torch
from opacus import GradSampleModule
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from opacus.layers import DPLSTM
from opacus.optimizers import (
    DPOptimizer,
    DPOptimizerFastGradientClipping,
)
from opacus.utils.fast_gradient_clipping_utils import (
    DPLossFastGradientClipping,
)

from benchmarks.harness.job import CLIP_NORM, LEARNING_RATE, Job
from benchmarks.harness.rivals import CLIPPED
from benchmarks.peers.torch_models import build_model, make_loss

warnings.filterwarnings("ignore")


def build(rival, model, task, *, data):
    net = build_model(model, DPLSTM)
    loss = make_loss(model)
    if rival == "opacus_ghost":
        wrapped, step = _ghost(net, loss, data)
    elif task == CLIPPED:
        wrapped, step = _hooks(net, loss, data)
    else:
        wrapped, step = _materialised(net, loss, data)

    def weights():
        return [p.detach().cpu().numpy() for p in wrapped.parameters()]

    return Job(step, weights)


def _settings(n):
    return {
        "noise_multiplier": 0.0,
        "max_grad_norm": CLIP_NORM,
        "expected_batch_size": n,
    }


def _hooks(net, loss, data):
    x, y = data
    wrapped = GradSampleModule(net)
    sgd = torch.optim.SGD(wrapped.parameters(), LEARNING_RATE)
    optimizer = DPOptimizer(sgd, **_settings(len(x)))

    def step():
        optimizer.zero_grad()
        loss(wrapped(x), y).backward()
        optimizer.step()

    return wrapped, step


def _ghost(net, loss, data):
    x, y = data
    wrapped = GradSampleModuleFastGradientClipping(
        net, max_grad_norm=CLIP_NORM, use_ghost_clipping=True
    )
    sgd = torch.optim.SGD(wrapped.parameters(), LEARNING_RATE)
    optimizer = DPOptimizerFastGradientClipping(sgd, **_settings(len(x)))
    double = DPLossFastGradientClipping(wrapped, optimizer, loss)

    def step():
        optimizer.zero_grad()
        double(wrapped(x), y).backward()
        optimizer.step()

    return wrapped, step


def _materialised(net, loss, data):
    x, y = data
    wrapped = GradSampleModule(net)

    def step():
        wrapped.zero_grad()
        for parameter in wrapped.parameters():
            parameter.grad_sample = None
        loss(wrapped(x), y).backward()
        return [p.grad_sample for p in wrapped.parameters()]

    return wrapped, step
