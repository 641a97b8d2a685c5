"""What was measured of each planted fault, once, on a quiet machine.

`python -m tests.stalls.recorded` measures again, and writes the
file that the tests read.
"""

import dataclasses
import functools
import json
import pathlib
import warnings

from keras_pergrad.stalls import data_stall
from keras_pergrad.stalls.accounting import StallReport
from keras_pergrad.stalls.facts import Facts
from keras_pergrad.stalls.running import RunningPipeline, RunningStage

FILE = pathlib.Path(__file__).with_name("recorded_faults.json")


@functools.cache
def _all():
    return json.loads(FILE.read_text())


@dataclasses.dataclass
class Epoch:
    """What was measured in one epoch, whatever the machine does now."""

    report: StallReport
    running: RunningPipeline | None
    passes: int | None

    @classmethod
    def of(cls, fault, when):
        """The epoch "before" the advice was followed, or "after"."""
        told = _all()[fault][when]
        running = told["running"]
        if running is not None:
            running = RunningPipeline(RunningStage(**s) for s in running)
        return cls(StallReport(**told["report"]), running, told["passes"])

    def facts(self, data):
        return Facts(self.report, data, self.running, passes=self.passes)

    def as_dict(self):
        """What JSON can hold of it, without what is not set."""
        report = _set(self.report)
        running = self.running and [_set(stage) for stage in self.running]
        return {"report": report, "running": running, "passes": self.passes}


def _set(figures):
    return {
        field.name: _rounded(getattr(figures, field.name))
        for field in dataclasses.fields(figures)
        if getattr(figures, field.name) != field.default
    }


def _rounded(value):
    return float(f"{value:.4g}") if isinstance(value, float) else value


def record(plants, fit, followed):
    """Measure every fault, and what comes of its advice; write the file."""
    epochs, diagnose = [], data_stall.diagnose

    def noting(facts, warn_above, **more):
        said = diagnose(facts, warn_above, **more)
        noted = Epoch(facts.report, facts.running, facts.passes)
        epochs.append((noted, said[0] is not None))
        return said

    def measured(run):
        epochs.clear()
        result = run()
        # The one whose message was printed; else the last.
        spoken = [epoch for epoch, says in epochs if says]
        return result, (spoken or [epochs[-1][0]])[0].as_dict()

    data_stall.diagnose, found = noting, {}
    for plant in plants:
        fault = plant()
        settings = fault.step, fault.epochs
        first = functools.partial(fit, fault.data, *settings)
        stall, before = measured(first)
        print(plant.__name__, [a.name for a in stall.advice], flush=True)
        data = followed(fault, stall)
        _, after = measured(functools.partial(fit, data, *settings))
        found[plant.__name__] = {"before": before, "after": after}
    data_stall.diagnose = diagnose
    # A line for each fault.
    lines = [f'"{name}": {json.dumps(told)}' for name, told in found.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    from tests.stalls import test_advice as tests

    warnings.simplefilter("ignore")
    record(tests.EVERY, tests.fit, tests.followed)
