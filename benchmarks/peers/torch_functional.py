"""torch.func: vmap of grad over the samples."""

import torch
from torch.func import functional_call, grad, vmap

from benchmarks.harness.job import Job
from benchmarks.harness.rivals import CLIPPED
from benchmarks.peers.torch_clip import apply_clipped
from benchmarks.peers.torch_models import build_model, make_loss


class StepwiseLSTM(torch.nn.Module):
    """An LSTM written out, since vmap does not know nn.LSTM."""

    def __init__(self, inputs, units, batch_first):
        super().__init__()
        assert batch_first
        gates = 4 * units
        self.weight_ih_l0 = torch.nn.Parameter(torch.empty(gates, inputs))
        self.weight_hh_l0 = torch.nn.Parameter(torch.empty(gates, units))
        self.bias_ih_l0 = torch.nn.Parameter(torch.empty(gates))

    def forward(self, x):
        projected = x @ self.weight_ih_l0.T + self.bias_ih_l0
        h = c = torch.zeros_like(projected[:, 0].chunk(4, -1)[0])
        outputs = []
        for z in projected.unbind(1):
            z = z + h @ self.weight_hh_l0.T
            i, f, g, o = z.chunk(4, -1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            outputs.append(h)
        return torch.stack(outputs, 1), None


def build(rival, model, task, *, data):
    del rival
    net = build_model(model, StepwiseLSTM)
    loss = make_loss(model)
    parameters = {k: v.detach() for k, v in net.named_parameters()}

    def one(parameters, x, y):
        outputs = functional_call(net, parameters, (x[None],))
        return loss(outputs, y[None])

    per_sample = vmap(grad(one), in_dims=(None, 0, 0))

    def gradients():
        return list(per_sample(parameters, *data).values())

    def clipped():
        apply_clipped(parameters.values(), gradients())

    step = clipped if task == CLIPPED else gradients
    return Job(step, lambda: [p.cpu().numpy() for p in parameters.values()])
