"""Plain torch, Opacus, torch.func and BackPACK."""

import importlib

import torch

from benchmarks.models import make_batch
from benchmarks.process import THREADS
from benchmarks.workers import torch_models
from benchmarks.workers.job import LEARNING_RATE, Job

torch.set_num_threads(THREADS)

_MODULES = {
    "opacus": "torch_opacus",
    "opacus_ghost": "torch_opacus",
    "torch_func": "torch_functional",
    "backpack": "torch_backpack",
}


def build(rival, model, task, batch):
    x, y = make_batch(model, batch)
    data = torch_models.inputs(x), torch_models.targets(model, y)
    if rival == "torch_plain":
        return _plain(model, data)
    module = importlib.import_module(f"benchmarks.workers.{_MODULES[rival]}")
    return module.build(rival, model, task, data)


def _plain(model, data):
    x, y = data
    net = torch_models.build_model(model)
    loss = torch_models.make_loss(model)
    optimizer = torch.optim.SGD(net.parameters(), LEARNING_RATE)

    def step():
        optimizer.zero_grad()
        loss(net(x), y).backward()
        optimizer.step()

    return Job(step, lambda: [p.detach().numpy() for p in net.parameters()])
