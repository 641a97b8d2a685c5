"""Plain torch, Opacus, torch.func and BackPACK."""

import importlib
import os

import torch

from benchmarks.harness.job import LEARNING_RATE, Job
from benchmarks.harness.process import GPU, THREADS
from benchmarks.peers import torch_models

if GPU in os.environ:
    torch.set_float32_matmul_precision("high")  # TensorFloat-32, as Keras has
else:
    torch.set_num_threads(THREADS)

_MODULES = {
    "opacus": "torch_opacus",
    "opacus_ghost": "torch_opacus",
    "torch_func": "torch_functional",
    "backpack": "torch_backpack",
}


def build(rival, model, task, *, batch):
    x, y = torch_models.make_batch(model, batch)
    data = torch_models.inputs(x), torch_models.targets(model, y)
    if rival in ("torch_plain", "torch_compiled"):
        job = _plain(model, data, rival == "torch_compiled")
    else:
        module = importlib.import_module(f"benchmarks.peers.{_MODULES[rival]}")
        job = module.build(rival, model, task, data=data)
    return job if card is None else Job(_awaited(job.step), job.weights)


def card():
    """Return the GPU's bytes in use, and their peak since the last call."""
    found = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    return found


if torch_models.DEVICE == "cpu":
    card = None


def _awaited(step):
    """Return a step that ends when the GPU has done it."""

    def wait():
        result = step()
        torch.cuda.synchronize()
        return result

    return wait


def _plain(model, data, is_compiled):
    x, y = data
    net = torch_models.build_model(model)
    if is_compiled:
        net = torch.compile(net)
    loss = torch_models.make_loss(model)
    optimizer = torch.optim.SGD(net.parameters(), LEARNING_RATE)

    def step():
        optimizer.zero_grad()
        loss(net(x), y).backward()
        optimizer.step()

    return Job(
        step, lambda: [p.detach().cpu().numpy() for p in net.parameters()]
    )
