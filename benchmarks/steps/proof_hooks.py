"""What `proof_baseline` uses of the package beside its public names.

A change to `proof/` or `uses/` that moves these names changes this file, and
the lines that `proof_baseline` writes stay the same.
"""

import contextlib
import statistics
import time
from unittest import mock

from keras_pergrad.modes import per_sample
from keras_pergrad.proof import traced_aside
from keras_pergrad.proof.step_proof import prove_step
from keras_pergrad.proof.tensor_types import FREE, Mixed, OfBranches
from keras_pergrad.uses import TracedStep, traced_step
from keras_pergrad.uses.search import CandidateUses


class Proved(Exception):
    """Raised behind a proof that refuses nothing, in place of the rest."""


@contextlib.contextmanager
def only_proved():
    """Trace, inside, no more of a step than its proof; end by `Proved`.

    What follows, the factors or the loop over the samples, takes most of the
    time; `explain` makes the factors, too.
    """

    def sample_gradients(step, *arguments, **named):
        next(iter(step.parts(*arguments, **named)), None)
        raise Proved

    def refusals(*arguments, **named):
        found = original(*arguments, **named)
        if found:
            return found
        raise Proved

    original = per_sample.refusals
    with (
        mock.patch.object(TracedStep, "sample_gradients", sample_gradients),
        mock.patch.object(per_sample, "refusals", refusals),
    ):
        yield


class Proofs:
    """The proofs that are made while it is open.

    Args:
        times: how often each is made, to be timed; 0: once, and not timed.

    Attributes:
        proofs: a list of (`StepProof`, milliseconds).
    """

    def __init__(self, times):
        self._times = times
        self.proofs, self._search_ms = [], 0.0

    @contextlib.contextmanager
    def open(self):
        search_init = CandidateUses.__init__

        def timed_proof(*arguments, **named):
            proofs, seconds = [], []
            for _ in range(max(self._times, 1)):
                begin = time.thread_time()
                proofs.append(prove_step(*arguments, **named))
                # They are asked for at once.
                proofs[-1].refusals  # noqa: B018
                seconds.append(time.thread_time() - begin)
            self.proofs.append((proofs[0], 1e3 * statistics.median(seconds)))
            return proofs[0]

        def timed_search(search, *arguments, **named):
            begin = time.thread_time()
            search_init(search, *arguments, **named)
            self._search_ms += 1e3 * (time.thread_time() - begin)

        with (
            mock.patch.object(traced_step, "prove_step", timed_proof),
            mock.patch.object(traced_aside, "prove_step", timed_proof),
            mock.patch.object(CandidateUses, "__init__", timed_search),
        ):
            yield self

    @property
    def ms(self):
        """The milliseconds of all proofs; None: there was none to time."""
        is_timed = self.proofs and self._times
        return sum(ms for _, ms in self.proofs) if is_timed else None

    @property
    def search_ms(self):
        """The milliseconds of all searches for uses, or None."""
        return self._search_ms if self._times else None

    def types(self):
        """Return lines: the types of outputs, of losses and at uses."""
        lines = []
        for k, (proof, _) in enumerate(self.proofs):
            lines += [f"{k} {line}" for line in _types(proof)]
        return lines

    def tensors(self):
        """Return name → type of all tensors that are not free."""
        return {
            f"{k} {name}": text(tensor_type)
            for k, (proof, _) in enumerate(self.proofs)
            for name, tensor_type in proof.types.by_name.items()
            if tensor_type != FREE
        }


def _types(proof):
    types = proof.types
    yield f"number {types.number}, sizes {'known' if types.fixed else 'open'}"
    for tensor in proof.outputs:
        yield f"output {text(proof.of(tensor))}"
    yield f"loss {text(proof.of(proof.loss))}"
    for k, (handle, tensor_type) in enumerate(types.assigned):
        dtype = None if handle is None else handle.dtype.name
        yield f"assigned {k} {dtype} {text(tensor_type)}"
    for candidate, seen in proof.choose_uses():
        yield f"use {candidate.op.type} {candidate.op.name}: {_at_use(seen)}"
    for op_type, name in types.typing.vouched_ops:
        yield f"vouched {op_type} {name}"


def _at_use(seen):
    inputs = [f"{k}={text(t)}" for k, t in sorted(seen.inputs.items())]
    outputs, cotangents = (
        ["-" if t is None else text(t) for t in types]
        for types in (seen.outputs, seen.cotangents)
    )
    parts = (" ".join(part) for part in (inputs, outputs, cotangents))
    return " | ".join(parts)


def text(tensor_type):
    """Return a type as a text."""
    if isinstance(tensor_type, Mixed):
        untyped = ", untyped" if tensor_type.untyped else ""
        return (
            f"Mixed({tensor_type.op_type} {tensor_type.op_name}: "
            f"{tensor_type.why}{untyped})"
        )
    if isinstance(tensor_type, OfBranches):
        kinds = sorted(f"{spec} {text(t)}" for spec, t in tensor_type.kinds)
        return f"OfBranches({tensor_type.free_flags}, {kinds})"
    factor = getattr(tensor_type, "factor", ())
    suffix = " whole" if factor is None else f" ×{len(factor)}" * bool(factor)
    return f"{tensor_type}{suffix}"
