"""TorchJD: the Gramian of a batch's losses, weights, and one more backward."""

import torch
from torchjd import aggregation
from torchjd.autogram import Engine
from torchjd.autojac import backward, jac_to_grad

from benchmarks.harness.job import LEARNING_RATE, Job
from benchmarks.harness.models import make_batch
from benchmarks.harness.rivals import BY_TASK
from benchmarks.peers import torch_models, torchjd_tasks

#: The weightings by our names, and the aggregators around them.
KINDS = {
    "upgrad": (aggregation.UPGradWeighting, aggregation.UPGrad, {}),
    "mgda": (aggregation.MGDAWeighting, aggregation.MGDA, {}),
    "cagrad": (aggregation.CAGradWeighting, aggregation.CAGrad, {"c": 0.5}),
    "pcgrad": (aggregation.PCGradWeighting, aggregation.PCGrad, {}),
    "imtlg": (aggregation.IMTLGWeighting, aggregation.IMTLG, {}),
    "aligned_mtl": (
        aggregation.AlignedMTLWeighting,
        aggregation.AlignedMTL,
        {},
    ),
    "krum": (aggregation.KrumWeighting, aggregation.Krum, {"n_byzantine": 1}),
}


def build(rival, model, task, *, batch):
    """Return a `Job`; `rival` is a key of `KINDS` and a number of threads.

    For steps by task it is the numbers of threads and of gradients at a time
    (0: all), and `batch` is the number of tasks.
    """
    rival, _, threads = rival.partition("@")
    if task == BY_TASK:
        return torchjd_tasks.build(
            model, batch, int(threads), chunk=int(rival) or None
        )
    x, y = make_batch(model, batch)
    x, y = torch_models.inputs(x), torch_models.targets(model, y)
    net = torch_models.build_model(model)
    loss = torch_models.make_loss(model, reduction="none")
    optimizer = torch.optim.SGD(net.parameters(), LEARNING_RATE)
    weighting, aggregator, arguments = KINDS[rival]

    def weights():
        return [p.detach().numpy() for p in net.parameters()]

    if model == "lstm":
        # Its engine does not know recurrent layers in batches.
        combine = aggregator(**arguments)

        def whole():
            torch.set_num_threads(int(threads))
            optimizer.zero_grad()
            backward(loss(net(x), y), parallel_chunk_size=1)
            jac_to_grad(net.parameters(), combine)
            optimizer.step()

        return Job(whole, weights)
    engine, weigh = Engine(net, batch_dim=0), weighting(**arguments)

    def step():
        torch.set_num_threads(int(threads))
        optimizer.zero_grad()
        losses = loss(net(x), y)
        losses.backward(weigh(engine.compute_gramian(losses)))
        optimizer.step()

    return Job(step, weights)
