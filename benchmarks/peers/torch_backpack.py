"""BackPACK: individual gradients by its BatchGrad extension."""

import torch
from backpack import backpack, extend
from backpack.custom_module.reduce_tuple import ReduceTuple
from backpack.extensions import BatchGrad

from benchmarks.harness.job import Job
from benchmarks.harness.rivals import CLIPPED
from benchmarks.peers.torch_clip import apply_clipped
from benchmarks.peers.torch_models import build_model, make_loss


class FirstOutput(torch.nn.Module):
    """nn.LSTM and the choice of its first output, as BackPACK wants it."""

    def __init__(self, lstm):
        super().__init__()
        self.lstm = lstm
        self.first = ReduceTuple(0)

    def forward(self, x):
        return self.first(self.lstm(x)), None


def build(rival, model, task, *, data):
    del rival
    x, y = data
    net = build_model(model)
    if model == "lstm":
        net.recurrent = FirstOutput(net.recurrent)
    net = extend(net)
    # A sum: what BackPACK calls individual gradients holds the mean's 1/n.
    loss = extend(make_loss(model, reduction="sum"))
    parameters = list(net.parameters())

    def gradients():
        net.zero_grad()
        with backpack(BatchGrad()):
            loss(net(x), y).backward()
        return [p.grad_batch for p in parameters]

    def clipped():
        apply_clipped(parameters, gradients())

    step = clipped if task == CLIPPED else gradients
    return Job(step, lambda: [p.detach().numpy() for p in parameters])
