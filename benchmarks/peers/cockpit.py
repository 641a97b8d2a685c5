"""Cockpit's quantities, of those that keras_pergrad has as well."""

import numpy as np
import torch
from backpack import extend
from cockpit import Cockpit, quantities
from torch.nn import functional as F

from benchmarks.harness.job import LEARNING_RATE, Job
from benchmarks.harness.models import make_batch
from benchmarks.harness.process import THREADS
from benchmarks.peers import torch_models

torch.set_num_threads(THREADS)

#: Means of ratios by weight, to whose variances ours add no `epsilon`.
RATIOS = "MeanGSNR", "EarlyStopping"
OTHERS = (
    "Loss",
    "GradNorm",
    "NormTest",
    "InnerTest",
    "OrthoTest",
    "CABS",
    "UpdateSize",
    "Distance",
    "Alpha",
)


class Training:
    """SGD on one batch.

    Attributes:
        parameters: the model's.
        optimizer: changes them.
    """

    def __init__(self, model, batch, dtype="float32"):
        x, y = make_batch(model, batch)
        dtype = getattr(torch, dtype)
        self.x = torch_models.inputs(x).to(dtype)
        self.y = torch_models.targets(model, y)
        self.net = torch_models.build_model(model).to(dtype)
        self.loss = torch_models.make_loss(model)
        self.parameters = list(self.net.parameters())
        self.optimizer = torch.optim.SGD(self.parameters, LEARNING_RATE)

    def take(self):
        """Take a step."""
        self.optimizer.zero_grad()
        self.loss(self.net(self.x), self.y).backward()
        self.optimizer.step()


class Watched(Training):
    """The same under Cockpit, which measures at steps that are `due`.

    Attributes:
        number: that of the next step.
        cockpit: the `Cockpit`.
    """

    def __init__(self, model, batch, due, *, dtype="float32"):
        super().__init__(model, batch, dtype)
        self.net, self.loss = extend(self.net), extend(self.loss)
        self.number = 0
        chosen = [getattr(quantities, n)(due, epsilon=0.0) for n in RATIOS]
        chosen += [getattr(quantities, n)(due) for n in OTHERS]
        self.cockpit = Cockpit(self.parameters, chosen)

    def take(self):
        self.optimizer.zero_grad()
        outputs = self.net(self.x)
        loss = self.loss(outputs, self.y)
        with torch.no_grad():
            losses = F.cross_entropy(outputs, self.y, reduction="none")
        info = {
            "batch_size": len(self.x),
            "individual_losses": losses,
            "loss": loss,
            "optimizer": self.optimizer,
        }
        with self.cockpit(self.number, info=info):
            loss.backward()
        self.optimizer.step()
        self.number += 1


def values(model, batch, steps, *, dtype):
    """Return what Cockpit reads at each of `steps`, by name.

    "Weights" are the norms of the parameters, which Cockpit does not read. At
    the last step, what needs the next one is missing.
    """
    training = Watched(model, batch, lambda step: step >= 0, dtype=dtype)
    sizes = []
    for _ in range(steps):
        parts = [p.detach().double().numpy() for p in training.parameters]
        sizes.append([float(np.linalg.norm(p)) for p in parts])
        training.take()
    output = training.cockpit.get_output()
    return [output[k] | {"Weights": sizes[k]} for k in range(steps)]


def build(rival, model, task, *, batch, steps):
    """Return a `Job` of some steps.

    `rival`: "plain"; "idle": under Cockpit, which measures nothing;
    "measured": the first step is measured (with alpha, the next one, too);
    or "every": each step is.
    """
    del task
    if rival == "plain":
        training = Training(model, batch)
    else:
        interval = {"idle": None, "measured": steps, "every": 1}[rival]

        def due(step):
            # Alpha asks about the step before, so also before the first.
            return interval is not None and step >= 0 == step % interval

        training = Watched(model, batch, due)

    def window():
        for _ in range(steps):
            training.take()

    return Job(window, lambda: [p.detach() for p in training.parameters])
