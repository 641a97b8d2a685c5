"""The report of a placement: what was found, and its text."""

import dataclasses

from keras_pergrad.analysis.placement import copies as copying


@dataclasses.dataclass
class PlacementReport:
    """Where a training step ran.

    A quantity that could not be obtained is `None`, never 0.

    Attributes:
        device: the accelerator's name (`"GPU:0"`), or `None`.
        platform: `"Metal"`, `"CUDA"`, ..., `"CPU"` without an accelerator.
        variables: device → how many of the model's and optimizer's
            variables live there.
        operations: a list of `Operation`, without those in opaque parts.
        copies: a list of `Copy`, or `None` where none can be seen.
        opaque: parts that TensorFlow does not show, `(name, device, why)`:
            with any of them there are no counts.
        hazards: a list of `Hazard`.
        notes: sentences about how the figures were obtained.
        deep: a `DeepReport`, with `deep=True`.
        prediction: the plugin's version if this is a prediction, or
            `"a table of your own"`.
        errors: with a prediction, ops at which the step would stop.
    """

    device: str | None
    platform: str
    variables: dict = dataclasses.field(default_factory=dict)
    operations: list = dataclasses.field(default_factory=list)
    copies: list = dataclasses.field(default_factory=list)
    opaque: list = dataclasses.field(default_factory=list)
    hazards: list = dataclasses.field(default_factory=list)
    notes: list = dataclasses.field(default_factory=list)
    deep: object = None
    prediction: str | None = None
    errors: list = dataclasses.field(default_factory=list)

    @property
    def known(self):
        """Whether all ops of the step could be seen."""
        return bool(self.operations) and not self.opaque

    def _count(self, cpu):
        if not self.known:
            return None
        return sum((o.kind == "cpu") == cpu for o in self.operations)

    @property
    def ops_on_accelerator(self):
        """Ops placed on the accelerator, each counted once."""
        return self._count(cpu=False)

    @property
    def ops_on_cpu(self):
        """Ops placed on the CPU, each counted once."""
        return self._count(cpu=True)

    @property
    def device_copies(self):
        """Copies between host and accelerator memory in one step."""
        if not self.known or self.copies is None:
            return None
        return copying.total(self.copies)

    def executions(self, kind):
        """How often a step runs each op type.

        Args:
            kind: `"device"`, `"generic"` or `"cpu"`.

        Returns:
            A dict from op type to a number, or to `None` if one of these ops
            is in a loop or branch whose course cannot be read, or may also be
            in an opaque part.
        """
        runs = {}
        for operation in self.operations:
            if operation.kind == kind:
                runs.setdefault(operation.op, []).append(operation.runs)
        return {
            op: sum(each) if self.known and None not in each else None
            for op, each in runs.items()
        }

    def fallbacks(self):
        """Ops on the CPU that could be seen, by type and reason.

        Returns:
            A list of `(op, reason, number, layers)`, most frequent first.
        """
        groups = {}
        for operation in self.operations:
            if operation.kind == "cpu" and operation.reason:
                key = operation.op, operation.reason
                groups.setdefault(key, []).append(operation.layer)
        rows = [
            (op, why, len(same), tuple(dict.fromkeys(filter(None, same))))
            for (op, why), same in groups.items()
        ]
        return sorted(rows, key=lambda row: (-row[2], row[0]))

    def __str__(self):
        from keras_pergrad.analysis.placement import report_text

        return report_text.render(self)
