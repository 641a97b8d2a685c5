"""Influence of a small MLP by dattri and kronfluence, for `influence.py`.

Run as `python -m benchmarks.peers.torch_influence in.npz out.npz`.
"""

import sys
import tempfile
import time
import warnings

import numpy as np
import torch
from dattri.algorithm.influence_function import (
    IFAttributorCG,
    IFAttributorEKFAC,
)
from dattri.task import AttributionTask
from kronfluence.analyzer import Analyzer, prepare_model
from kronfluence.arguments import FactorArguments, ScoreArguments
from kronfluence.task import Task
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")


def _model(data):
    layers = []
    for k in range(0, int(data["arrays"]), 2):
        kernel, bias = data[f"w{k}"], data[f"w{k + 1}"]
        layer = nn.Linear(*kernel.shape)
        layer.weight.data = torch.tensor(kernel.T.copy())
        layer.bias.data = torch.tensor(bias)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _loaders(train, test):
    return (
        DataLoader(train, batch_size=len(train)),
        DataLoader(test, batch_size=len(test)),
    )


def _dattri(make_attributor, data, train, *, test):
    """The scores of an attributor of dattri, (tests, samples)."""
    model = _model(data)

    def loss(params, batch):
        image, label = batch
        predicted = torch.func.functional_call(model, params, image)
        return nn.CrossEntropyLoss()(predicted, label)

    task = AttributionTask(loss, model, model.state_dict())
    train, test = _loaders(train, test)
    attributor = make_attributor(task)
    attributor.cache(train)
    return attributor.attribute(train, test).detach().numpy().T


def _dattri_cg(data, train, test, *, damping):
    def make(task):
        return IFAttributorCG(task, regularization=damping)

    return _dattri(make, data, train, test=test)


def _dattri_ekfac(data, train, test, *, damping):
    def make(task):
        return IFAttributorEKFAC(task, damping=damping)

    return _dattri(make, data, train, test=test)


class _Classification(Task):
    def compute_train_loss(self, batch, model, sample=False):
        image, label = batch
        logits = model(image)
        if sample:
            chances = torch.softmax(logits.detach(), -1)
            label = torch.multinomial(chances, 1).flatten()
        return nn.functional.cross_entropy(logits, label, reduction="sum")

    def compute_measurement(self, batch, model):
        return self.compute_train_loss(batch, model)


def _kronfluence(data, train, test, *, damping):
    task = _Classification()
    model = prepare_model(_model(data), task)
    with tempfile.TemporaryDirectory() as folder:
        analyzer = Analyzer(
            "digits",
            model,
            task,
            cpu=True,
            output_dir=folder,
            disable_tqdm=True,
            disable_model_save=True,
        )
        analyzer.fit_all_factors(
            "factors",
            train,
            per_device_batch_size=256,
            factor_args=FactorArguments(strategy="ekfac"),
        )
        analyzer.compute_pairwise_scores(
            "scores",
            "factors",
            test,
            train,
            per_device_query_batch_size=len(test),
            per_device_train_batch_size=256,
            score_args=ScoreArguments(damping_factor=damping),
        )
        scores = analyzer.load_pairwise_scores("scores")
    return scores["all_modules"].numpy()


def main(given, out):
    torch.set_num_threads(2)
    data = np.load(given)
    train, test = (
        TensorDataset(
            torch.tensor(data[f"x_{part}"]), torch.tensor(data[f"y_{part}"])
        )
        for part in ("train", "test")
    )
    found = {}
    ways = {
        "dattri CG": (_dattri_cg, (1e-3, 1e-2, 1e-1)),
        "dattri EK-FAC": (_dattri_ekfac, (1e-3, 1e-2, 1e-1)),
        "kronfluence EK-FAC": (_kronfluence, (None, 1e-3, 1e-2, 1e-1)),
    }
    for name, (ask, dampings) in ways.items():
        for damping in dampings:
            for turn in range(2):
                begun = time.perf_counter()
                try:
                    scores = ask(data, train, test, damping=damping)
                except Exception as error:
                    print(f"{name}: {type(error).__name__}: {error}")
                    break
                took = time.perf_counter() - begun
                found[f"{name}|{damping}|{turn}|{took:.3f}"] = scores
    np.savez(out, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
