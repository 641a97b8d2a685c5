"""The command `doctor`: asks, judges, prints."""

import contextlib
import getpass
import json
import os
import pathlib
import platform
import re
import signal
import subprocess
import sys

from keras_pergrad.doctor import cuda, versions
from keras_pergrad.doctor.versions import (
    ERROR,
    METAL_FIX,
    NOTE,
    OK,
    WARNING,
    Finding,
)

_SECONDS = 300
_MARKS = {OK: "ok", NOTE: "note", WARNING: "warn", ERROR: "ERROR"}
# Pattern of a failed import → (explanation, fix); the first that matches.
_KNOWN = (
    (
        r"platform is already registered with name",
        "a device plugin was loaded twice, or two plugins share a name",
        "keep one of them: look into site-packages/tensorflow-plugins and "
        "at TF_PLUGGABLE_DEVICE_LIBRARY_PATH",
    ),
    (
        r"Library not loaded: @rpath/_pywrap_tensorflow_internal",
        "tensorflow-metal 1.2.0 looks for a library that TensorFlow 2.20 "
        "and later have renamed",
        METAL_FIX,
    ),
    (
        r"libmetal_plugin|tensorflow-plugins",
        "tensorflow-metal does not fit this TensorFlow: it is loaded inside "
        "`import tensorflow`, which fails with it",
        METAL_FIX,
    ),
    (
        r"_TF_AssignUpdateVariable|_TF_AllocateOutput",
        "a plugin built for another TensorFlow",
        METAL_FIX,
    ),
    (
        r"_ARRAY_API not found|numpy\.core\.multiarray failed"
        r"|compiled using NumPy 1\.x|numpy\.dtype size changed",
        "this NumPy does not fit this TensorFlow",
        "pip install --force-reinstall tensorflow, which brings a NumPy "
        "that fits",
    ),
    (
        r"google\.protobuf|Detected incompatible Protobuf",
        "this protobuf does not fit this TensorFlow",
        "pip install --force-reinstall tensorflow",
    ),
    (
        r"No module named 'tensorflow'",
        "TensorFlow is not installed in this environment",
        'pip install "tensorflow>=2.18"',
    ),
    (
        r"No module named '(?:keras|numpy|packaging)",
        "a package that TensorFlow needs is missing",
        "pip install --force-reinstall tensorflow",
    ),
)
_SIGNALS = {
    signal.SIGILL: (
        "the processor lacks instructions that this TensorFlow was built "
        "with (AVX, or an Intel wheel under Rosetta)",
        "use a wheel for this processor; on a Mac a Python for arm64",
    ),
    signal.SIGABRT: (
        "TensorFlow aborted while it loaded",
        "the lines above say why; `pip check` may name a wrong package",
    ),
    signal.SIGSEGV: (
        "TensorFlow crashed while it loaded",
        "pip install --force-reinstall tensorflow; remove device plugins",
    ),
}
# A folder's name may hold spaces. Where nothing ends it, too much is cut
# rather than too little.
_NAME = r"[^/\\'\":;,()<>|\n]*"
_HOMES = re.compile(
    rf"(?:[a-z]:(?:\\+|/)users(?:\\+|/)|/(?:users|home)/){_NAME}",
    re.IGNORECASE,
)
_STEP = r"[^/\\\s'\":,()]+(?: [^/\\\s'\":,()]+)*"
_FOLDERS = re.compile(rf"(?<![\w@.])~?(?:/{_STEP})+/")
_WINDOWS_FOLDERS = re.compile(rf"(?:\b[A-Za-z]:|~)\\+(?:{_STEP}\\+)*")


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
        probe, matmul = _start(), _start("matmul")
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


def _start(*arguments):
    module = "keras_pergrad.doctor.probe"
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
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
        why, fix, said = explain(printed, process.returncode)
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
            from keras_pergrad.checking import numerics

            verdict = numerics.judge(reference, losses, "float32", terms=32)
            said = f"the same loss on {device} (to {verdict.relative:.0e})"
            if not verdict.ok:
                level, fix = (
                    ERROR,
                    "keras_pergrad.diagnose.compare_devices names the op",
                )
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


def explain(output, code):
    """Return why an import failed, the fix, and the telling line."""
    for pattern, why, fix in _KNOWN:
        if re.search(pattern, output):
            return why, fix, _line(output, pattern)
    if code < 0 and -code in _SIGNALS:
        why, fix = _SIGNALS[signal.Signals(-code)]
        return why, fix, _line(output, "")
    return (
        f"`import tensorflow` ended with code {code}",
        "pip install --force-reinstall tensorflow; if it stays, report it "
        "with the output of --json",
        _line(output, ""),
    )


def _line(output, pattern):
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = [line for line in lines if pattern and re.search(pattern, line)]
    chosen = (telling or lines or [""])[-1]
    return without_paths(chosen)[:300]


def without_paths(text):
    """Remove folders and this user's name from a text."""
    home, names = _whose()
    if home:
        text = re.sub(re.escape(home) + r"(?!\w)", "~", text, flags=re.I)
    text = _HOMES.sub("~", text)
    for name in names:
        whole = rf"(?<!\w){re.escape(name)}(?!\w)"
        text = re.sub(whole, "...", text, flags=re.I)
    text = _WINDOWS_FOLDERS.sub(r"...\\", text)
    return _FOLDERS.sub(".../", text)


def _whose():
    """Return this user's home, if known, and the names of home and user."""
    home, names = "", set()
    with contextlib.suppress(RuntimeError):
        folder = pathlib.Path.home()
        names.add(folder.name)
        home = str(folder) if folder.name else ""  # "/" is nobody's
    # Without a password database Python raises one of these.
    with contextlib.suppress(OSError, KeyError, ImportError):
        names.add(getpass.getuser())
    # "root" names nobody, and a single letter may be a word.
    return home, {n for n in names - {"root"} if len(n) > 1}
