"""The command `doctor`: asks, judges, prints."""

import json
import os
import platform
import subprocess
import sys

from keras_pergrad.analysis.doctor import failures, versions
from keras_pergrad.analysis.doctor.machine_findings import (
    ERROR,
    NOTE,
    OK,
    WARNING,
    Finding,
    without_paths,
)

_SECONDS = 300
_MARKS = {OK: "ok", NOTE: "note", WARNING: "warn", ERROR: "ERROR"}


def add_to(subcommands):
    """Add `doctor` to a parser's subcommands."""
    parser = subcommands.add_parser(
        "doctor",
        help="say whether this machine can train, where, and what to fix",
    )
    parser.add_argument(
        "--json", action="store_true", help="for bug reports; no paths in it"
    )
    parser.set_defaults(run=run)


def run(chosen):
    """Run the doctor; return 0 when all is well, 1 with errors."""
    report = examine()
    print(json.dumps(report, indent=1) if chosen.json else text(report))
    return 1 if report["errors"] else 0


def examine():
    """Look at everything; return a dict that JSON can hold."""
    found = versions.installed()
    findings = versions.check(found)
    facts = {}
    if found["tensorflow"] is not None:
        probe, matmul = _start("probe"), _start("matmul")
        facts, more = _inside(probe)
        findings += more
        defect = _matmul(matmul, imported="tensorflow" in facts)
        findings += [defect] if defect is not None else []
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": found,
        "facts": facts,
        "findings": [vars(f) for f in findings],
        "errors": sum(f.level == ERROR for f in findings),
    }


def text(report):
    """Return the text that the doctor prints."""
    lines = [f"keras_pergrad doctor · {report['system']}"]
    for finding in report["findings"]:
        mark = _MARKS[finding["level"]]
        lines.append(f"{mark:>5}  {finding['subject']}: {finding['message']}")
        if finding["fix"]:
            lines.append(f"       → {finding['fix']}")
    count = report["errors"]
    if count:
        lines.append(f"{count} error{'s' if count > 1 else ''}")
    else:
        lines.append("no errors")
    return "\n".join(lines)


def _start(module):
    return subprocess.Popen(
        [sys.executable, "-m", f"keras_pergrad.analysis.doctor.{module}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
    )


def _finish(process):
    try:
        return process.communicate(timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        return out, err + f"\nstopped after {_SECONDS} seconds"


def _inside(process):
    """Return what the probe found: `(facts, findings)`."""
    out, err = _finish(process)
    facts = {"training": []}
    for line in out.splitlines():
        if line.startswith("PROBE "):
            fact = json.loads(line.removeprefix("PROBE "))
            step = fact.pop("step")
            if "error" in fact:
                fact["error"] = without_paths(fact["error"])
            if step == "training":
                facts[step].append(fact)
            else:
                facts[step] = fact
    if "tensorflow" not in facts:
        why, fix, said = failures.explain(err + out, process.returncode)
        finding = Finding(ERROR, "import tensorflow", f"{why} ({said})", fix)
        return facts, [finding]
    findings = [
        _backend(facts),
        *_devices(facts),
        *_training(facts),
        _xla(facts),
        _onednn(),
        _determinism(facts),
    ]
    if "done" not in facts:
        why, fix, said = failures.explain(err, process.returncode)
        findings.append(
            Finding(ERROR, "TensorFlow", f"it crashed: {why} ({said})", fix)
        )
    facts.pop("done", None)
    return facts, [finding for finding in findings if finding is not None]


def _backend(facts):
    backend = facts.get("keras", {}).get("backend")
    if backend in (None, "tensorflow"):
        return None
    return Finding(
        ERROR,
        "Keras backend",
        f"expected tensorflow. Received: {backend}",
        "export KERAS_BACKEND=tensorflow, or edit ~/.keras/keras.json",
    )


def _devices(facts):
    devices = facts.get("devices")
    if not devices:
        return []
    if "error" in devices:
        return [Finding(ERROR, "devices", devices["error"])]
    names = [f"{d['name']} ({d['platform']})" for d in devices["accelerators"]]
    listed = ", ".join(["CPU", *names])
    if any(d["platform"] == "Metal" for d in devices["accelerators"]):
        listed += "; this is Metal"
    elif not names:
        listed += " only"
    return [Finding(OK, "devices", listed)]


def _training(facts):
    findings, reference = [], None
    for result in facts["training"]:
        device, level, fix = result.get("device", "a device"), OK, ""
        losses = result.get("losses")
        if losses is None:
            level, said = ERROR, f"it stops: {result['error']}"
        elif reference is None:
            reference = losses
            shown = ", ".join(f"{loss:.4f}" for loss in losses)
            said = f"a two-layer model trains on {device} (loss {shown})"
        else:
            # NumPy is there, now that TensorFlow has trained.
            from keras_pergrad.analysis import numerics

            verdict = numerics.judge(reference, losses, "float32", terms=32)
            said = f"the same loss on {device} (to {verdict.relative:.0e})"
            if not verdict.ok:
                level, fix = ERROR, "keras_pergrad.compare_devices names the op"
                said = (
                    f"the loss on {device} differs from the CPU's by "
                    f"{verdict.error:.3g}: not rounding"
                )
        findings.append(Finding(level, "training", said, fix))
    return findings


def _xla(facts):
    xla = facts.get("xla")
    if xla is None:
        return None
    if not xla.get("works"):
        said = f"does not work: {xla.get('error', 'wrong result')}"
        return Finding(NOTE, "XLA", said)
    accelerators = facts.get("devices", {}).get("accelerators", [])
    metal = any(d["platform"] == "Metal" for d in accelerators)
    where = "works on the CPU" + ("; Metal has none" if metal else "")
    return Finding(OK, "XLA", where)


def _onednn():
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return None
    off = os.environ.get("TF_ENABLE_ONEDNN_OPTS") == "0"
    return Finding(OK, "oneDNN", "off" if off else "on")


def _matmul(process, imported):
    out, _ = _finish(process)
    if not imported:
        return None
    if process.returncode == 0 and out.strip().endswith("right"):
        return Finding(OK, "matmul", "right (oneDNN's known defect is absent)")
    how = "gave wrong numbers" if "wrong" in out else "crashed"
    return Finding(
        WARNING,
        "matmul",
        f"[b, 1, t, k] times [k, n] {how}: a defect of oneDNN in "
        f"TensorFlow; keras_pergrad avoids that shape, other code may not",
        "TF_ENABLE_ONEDNN_OPTS=0 in the environment, if a model of yours "
        "multiplies such shapes",
    )


def _determinism(facts):
    state = facts.get("determinism")
    if not state or "error" in state:
        return None
    on = state["op_determinism"] or state["TF_DETERMINISTIC_OPS"] == "1"
    seed = state["PYTHONHASHSEED"] or "not set"
    message = f"ops {'on' if on else 'off'}, PYTHONHASHSEED {seed}"
    return Finding(OK, "determinism", message)
