"""The command `doctor`: asks, judges, prints."""

import json
import os
import platform
import subprocess
import sys

from keras_pergrad.analysis.doctor import cuda, failures, versions
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
    installed = versions.installed()
    findings = versions.check(installed)
    facts = {}
    if installed["tensorflow"] is not None:
        probe, matmul = _start("probe"), _start("matmul")
        facts, of_probe = _inside(probe)
        of_matmul = _matmul(matmul)
        findings += of_probe
        if "tensorflow" in facts:
            findings.append(of_matmul)
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": installed,
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
    plural = "" if count == 1 else "s"
    return "\n".join([*lines, f"{count or 'no'} error{plural}"])


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
    """Return what the probe says of TensorFlow: `(facts, findings)`."""
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
    loaded = "tensorflow" in facts
    findings = list(_judged(facts)) if loaded else []
    if facts.pop("done", None) is None:
        printed = err if loaded else err + out
        why, fix, said = failures.explain(printed, process.returncode)
        subject = "TensorFlow" if loaded else "import tensorflow"
        crashed = "it crashed: " if loaded else ""
        said = f"{crashed}{why} ({said})"
        findings.append(Finding(ERROR, subject, said, fix))
    return facts, findings


def _judged(facts):
    """Yield a finding for each fact."""
    backend = facts.get("keras", {}).get("backend")
    if backend not in (None, "tensorflow"):
        said = f"expected tensorflow. Received: {backend}"
        fix = "export KERAS_BACKEND=tensorflow, or edit ~/.keras/keras.json"
        yield Finding(ERROR, "Keras backend", said, fix)
    devices = facts.get("devices", {})
    if "error" in devices:
        yield Finding(ERROR, "devices", devices["error"])
    accelerators = devices.get("accelerators", [])
    metal = any(d["platform"] == "Metal" for d in accelerators)
    if "accelerators" in devices:
        names = [f"{d['name']} ({d['platform']})" for d in accelerators]
        remark = "; this is Metal" if metal else "" if names else " only"
        yield Finding(OK, "devices", ", ".join(["CPU", *names]) + remark)
    yield from _training(facts)
    xla = facts.get("xla", {})
    if xla.get("works"):
        where = "works on the CPU" + ("; Metal has none" if metal else "")
        yield Finding(OK, "XLA", where)
    elif xla:
        said = f"does not work: {xla.get('error', 'wrong result')}"
        yield Finding(NOTE, "XLA", said)
    on_gpu = facts.get("xla_gpu", {})
    if on_gpu.get("works"):
        said = "works on the GPU: Keras compiles with it by default"
        yield Finding(OK, "XLA", said)
    elif on_gpu:
        said = f"fails on the GPU: {on_gpu.get('error', 'wrong result')}"
        fix = "compile(..., jit_compile=False)"
        yield Finding(ERROR, "XLA", said, fix)
    yield from cuda.judge(facts.get("cuda", {}))
    if platform.machine().lower() in ("x86_64", "amd64"):
        off = os.environ.get("TF_ENABLE_ONEDNN_OPTS") == "0"
        yield Finding(OK, "oneDNN", "off" if off else "on")
    state = facts.get("determinism", {})
    if "op_determinism" in state:
        on = state["op_determinism"] or state["TF_DETERMINISTIC_OPS"] == "1"
        seed = state["PYTHONHASHSEED"] or "not set"
        said = f"ops {'on' if on else 'off'}, PYTHONHASHSEED {seed}"
        yield Finding(OK, "determinism", said)


def _training(facts):
    reference = None
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
        yield Finding(level, "training", said, fix)


def _matmul(process):
    out, _ = _finish(process)
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
