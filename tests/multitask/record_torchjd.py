"""Record what TorchJD's aggregators give, for the tests, which need no torch.

    pip install "torchjd[cagrad,quadprog_projector]==0.18.0"
    python -m tests.multitask.record_torchjd

writes torchjd.json beside it: TorchJD's weights of the rows of each matrix
in float64. PCGrad draws its orders by `torch.randperm`, in
whose place it is given those recorded with it. CAGrad's solver
stops at 1e-8 of its objective, which leaves its weights 1e-4 from the solution:
it is asked for 1e-15.
"""

import json
import pathlib
from unittest import mock

import numpy as np

from tests.multitask.matrices import MATRICES, PREFERENCE

PATH = pathlib.Path(__file__).with_name("torchjd.json")
DIGITS = 12


def _orders(m):
    """Return an order of the rows for each row."""
    rng = np.random.default_rng(m)
    return [rng.permutation(m).tolist() for _ in range(m)]


def _solve(cvxpy):
    """Return a solver of a program to more digits than by default."""
    solve = cvxpy.Problem.solve
    names = "tol_gap_abs", "tol_gap_rel", "tol_feas", "tol_ktratio"
    limits = dict.fromkeys(names, 1e-15)
    return lambda problem, solver: solve(problem, solver, **limits)


def main():
    import cvxpy
    import torch
    from torchjd import aggregation as rivals

    weightings = {
        "UPGrad": rivals.UPGradWeighting(),
        "MGDA": rivals.MGDAWeighting(),
        "MGDA, long": rivals.MGDAWeighting(1e-6, 1000),
        "CAGrad": rivals.CAGradWeighting(c=0.5),
        "CAGrad, wide": rivals.CAGradWeighting(c=1.5),
        "IMTLG": rivals.IMTLGWeighting(),
        "AlignedMTL": rivals.AlignedMTLWeighting(),
        "AlignedMTL, median": rivals.AlignedMTLWeighting(scale_mode="median"),
        "AlignedMTL, rmse": rivals.AlignedMTLWeighting(scale_mode="rmse"),
        "PCGrad": rivals.PCGradWeighting(),
    }
    recorded = {"torchjd": "0.18.0", "weights": {}, "orders": {}}
    for name, (rows, _) in MATRICES.items():
        matrix = torch.tensor(rows, dtype=torch.float64)
        m = len(rows)
        gramian = matrix @ matrix.T
        found = dict(weightings)
        if m > 3:
            found["Krum"] = rivals.KrumWeighting(n_byzantine=1)
            found["Krum, 3"] = rivals.KrumWeighting(1, n_selected=3)
        if name == "three":
            preference = torch.tensor(PREFERENCE, dtype=torch.float64)
            found["UPGrad, preference"] = rivals.UPGradWeighting(preference)
            aligned = rivals.AlignedMTLWeighting(preference)
            found["AlignedMTL, preference"] = aligned
        orders = _orders(m)
        recorded["orders"][name] = orders
        recorded["weights"][name] = {}
        for label, weighting in found.items():
            drawn = [torch.tensor(order) for order in orders]
            with (
                mock.patch.object(torch, "randperm", side_effect=drawn),
                mock.patch.object(cvxpy.Problem, "solve", _solve(cvxpy)),
            ):
                weights = weighting(gramian)
            assert weights.dtype == torch.float64
            numbers = [round(w, DIGITS) for w in weights.tolist()]
            recorded["weights"][name][label] = numbers
    PATH.write_text(json.dumps(recorded, indent=1) + "\n")


if __name__ == "__main__":
    main()
