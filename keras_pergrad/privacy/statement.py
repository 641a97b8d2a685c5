"""The statement of what a training spent, in figures and in words."""

import copy
import dataclasses
import datetime
import hashlib
import importlib.metadata
import os
import textwrap
from collections.abc import Sequence
from typing import Any

from keras_pergrad.common import page
from keras_pergrad.common.arguments import named_arguments, path_text
from keras_pergrad.common.machine import library_versions
from keras_pergrad.privacy import accounting, statement_page, statement_words
from keras_pergrad.privacy.mechanism import (
    BOUNDING,
    EXAMPLE,
    UNIQUE,
    USER,
    Mechanism,
)
from keras_pergrad.privacy.proof_record import ProofRecord
from keras_pergrad.privacy.selections import ADD_OR_REMOVE, BLANK, REPLACE
from keras_pergrad.privacy.trade_off import trade_off

_NEIGHBOURS = {
    ADD_OR_REMOVE: "one {unit} added or removed",
    REPLACE: "one {unit} replaced by another, their number being known",
    BLANK: "one {unit} replaced by a blank, which counts but adds nothing",
}
_NOT_COVERED = (
    "hyper-parameters chosen by several runs on these examples, except the "
    "trials of kpg.privacy.search, which are counted",
    "figures in the logs, such as the loss, clipped_fraction and "
    "nonfinite_samples, and anything else that is evaluated on these "
    "examples: they are computed without noise",
    "preprocessing that saw these examples, such as a vocabulary, a mean, or "
    "class weights computed from their labels",
    "the number of examples, which is treated as public",
    "checkpoints, which contain the seeds: publish only the weights of a "
    "plain keras.Model",
    "training that started from weights already trained on these examples",
    "private training of other models on these examples, such as the new "
    "model of each round in federated training: its epsilon starts at 0 and "
    "adds to this one, unless PrivateTraining(continue_from=model) continues "
    "this count",
)


class Statement(dict[str, Any]):
    """The guarantee: for whom, on what assumptions, and what it leaves out.

    As a dict it has the entries of `of`, for machines: the `clipping` of each
    of its `phases` is JSON. Printed, it is text, and so is
    `Statement(json.loads(text))` of one that was saved.

    Example:

    >>> import json
    >>> import keras_pergrad as kpg
    >>> private = kpg.PrivateTraining(
    ...     target_epsilon=3.0,
    ...     delta=1e-5,
    ...     samples=1000,
    ...     batch_size=100,
    ...     epochs=2,
    ... )
    >>> statement = private.statement()
    >>> text = json.dumps(statement)
    >>> again = kpg.privacy.Statement(json.loads(text))
    >>> str(again) == str(statement)
    True
    """

    @classmethod
    def of(
        cls,
        phases: Sequence[tuple[Mechanism, int]],
        delta: float,
        budget: float | None,
        *,
        planned: bool = False,
        outside: bool = False,
        proof: ProofRecord | None = None,
        has_seed: bool = False,
        has_views: bool = False,
        vouched: Sequence[str] = (),
        weights_file: str | os.PathLike[str] | None = None,
    ) -> "Statement":
        """Make the statement for phases, (`Mechanism`, steps) each."""
        started = tuple((m, steps) for m, steps in phases if steps)
        shown = started or phases
        relation = accounting.neighboring_relation(shown)
        units = {(m.unit, m.examples_per_user) for m, _ in shown}
        proof = proof or ProofRecord()
        names = proof.names if proof.ops else vouched
        for_users = len(units) == 1 and units.pop()[0] == USER
        unit = "user" if for_users else "example"
        return cls(
            epsilon=accounting.compute_epsilon(started, delta),
            delta=delta,
            **copy.deepcopy(trade_off(started)),
            planned=planned,
            budget=budget,
            unit=unit,
            neighbours=_NEIGHBOURS[relation].format(unit=unit),
            accountant=accounting.accountant_name(started),
            outside=outside,
            proof=proof.in_words(vouched),
            vouched=list(names),
            phases=[_phase_entry(m, steps) for m, steps in shown],
            assumptions=list(
                _assumptions(shown, names, has_seed, has_views=has_views)
            ),
            not_covered=list(_NOT_COVERED),
            date=datetime.datetime.now(datetime.UTC).date().isoformat(),
            versions=_versions(),
            weights_sha256=None
            if weights_file is None
            else _sha256(weights_file),
        )

    def __str__(self) -> str:
        lines = [
            *statement_words.describe_guarantee(self),
            *statement_words.describe_trade_off(self),
            *[f"Phase: {text}" for text in statement_words.each_phase(self)],
            f"{self['proof']}.",
            "It is assumed that",
            *[f"- {text};" for text in self["assumptions"]],
            "Not covered:",
            *[f"- {text};" for text in self["not_covered"]],
            *statement_words.describe_origin(self),
        ]
        return "\n".join(
            textwrap.fill(
                line, 80, subsequent_indent="  ", break_on_hyphens=False
            )
            for line in lines
        )

    __repr__ = __str__

    @named_arguments
    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the statement as one page, for whoever has to sign it.

        It begins in plain words, is for light and dark and for paper, and
        needs no other file and no network. The trade-off curve needs the
        extra `keras-pergrad[plot]`; without it the page says so.

        Args:
            path: the file to write; None: nothing is written.

        Returns:
            The HTML; with a path, the path.

        Example:

        >>> import keras_pergrad as kpg
        >>> private = kpg.PrivateTraining(
        ...     noise_multiplier=2.0,
        ...     delta=1e-5,
        ...     samples=1000,
        ...     batch_size=100,
        ...     epochs=2,
        ... )
        >>> html = private.statement().to_html()
        >>> "No conclusion" in html
        True
        """
        document = statement_page.document(self)
        if path is None:
            return document
        return page.write(path, document)


def _versions():
    """Return package → version, of those that the guarantee rests on."""
    libraries = library_versions()
    return {
        **{k: libraries[k] for k in ("keras_pergrad", "tensorflow", "keras")},
        "dp-accounting": importlib.metadata.version("dp-accounting"),
    }


def _sha256(path):
    path = path_text("weights_file", path, "a file, such as 'a.weights.h5'")
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _phase_entry(mechanism, steps):
    as_dict, search = mechanism.to_dict(), mechanism.search
    return {
        "steps": steps,
        "sampling": mechanism.sampling,
        "samples": mechanism.examples,
        "batch_size": mechanism.batch_size,
        "samples_per_user": mechanism.examples_per_user,
        "noise_multiplier": list(mechanism.noise_range(max(steps, 1))),
        "strategy": as_dict["strategy"],
        "clipping": as_dict["clipping"],
        "search": search and dataclasses.asdict(search),
        "augmentations": mechanism.augmentations,
        "unit": mechanism.unit,
    }


def _assumptions(phases, vouched, has_seed, *, has_views):
    mechanisms = dict.fromkeys(m for m, _ in phases)
    yield from dict.fromkeys(m.selection.in_words.format(m) for m in mechanisms)
    for max_examples in sorted(
        {m.examples_per_user for m in mechanisms if m.unit == USER}
    ):
        yield (
            f"`user_ids` are correct; at most {max_examples} examples of each "
            "user are used"
        )
    if any(m.unit == EXAMPLE for m in mechanisms):
        yield (
            "each example comes from a different person: a person with several "
            "has less protection"
        )
    if any(m.unit == UNIQUE for m in mechanisms):
        yield (
            "each example comes from a different person, as user_ids='unique' "
            "states"
        )
    yield _seed_assumption(has_seed, any(m.search for m in mechanisms))
    yield (
        "noise and sums, which are computed in floating point, behave like "
        "real numbers"
    )
    yield "each sample weight depends only on its own example"
    yield "each example keeps its index in the data from epoch to epoch"
    if vouched:
        yield (
            "what the user vouches for processes each example separately: "
            f"{', '.join(vouched)}"
        )
    for clipping in dict.fromkeys(m.clipping for m in mechanisms if m.clipping):
        if clipping.name not in BOUNDING:
            yield (
                f"{clipping.name} keeps the gradient of each sample within its "
                "clip_norm; the user vouches for this"
            )
    if has_views or any(m.augmentations > 1 for m in mechanisms):
        yield (
            "`augment` makes each view from one example only, and contains "
            "nothing computed from the others, such as their mean"
        )
    for search in [m.search for m in mechanisms if m.search]:
        yield (
            "the score of the search is computed from public data only"
            if search.score_noise is None
            else "each entry of the search's private score depends only on the "
            "model and one protected example"
        )
        yield (
            "only the result of the search is published: not the number of "
            "trials, which is secret, nor how long it took, nor its folder"
        )
    yield "no other training on these examples has changed the weights"


def _seed_assumption(has_seed, is_search):
    """Say what must stay unknown for the noise to hide anything."""
    if is_search:
        what = (
            "seed of the search, which is stored in its folder and determines "
            "the noise and the batches of its trials"
        )
    elif has_seed:
        what = (
            "`seed` that was given (or that an earlier version drew from 30 "
            "bits), which determines noise and batches: give a seed only to "
            "reproduce a run; without it the operating system draws a key of "
            "128 bits"
        )
    else:
        what = (
            "key of noise and batches, 128 bits from the operating system, "
            "which pseudo-random generators start from"
        )
    return f"nobody who sees the result knows or can guess the {what}"
