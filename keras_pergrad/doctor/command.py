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

_TIMEOUT_SECONDS = 300
_MARKS = {OK: "ok", NOTE: "note", WARNING: "warn", ERROR: "ERROR"}
# Pattern of a failed import → (explanation, fix); the first that matches.
_KNOWN_FAILURES = (
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
        "the plugin for Metal does not fit this TensorFlow: it is loaded "
        "inside `import tensorflow`, which fails with it",
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
_HOME_FOLDERS = re.compile(
    rf"(?:[a-z]:(?:\\+|/)users(?:\\+|/)|/(?:users|home)/){_NAME}",
    re.IGNORECASE,
)
_PATH_STEP = r"[^/\\\s'\":,()]+(?: [^/\\\s'\":,()]+)*"
_FOLDERS = re.compile(rf"(?<![\w@.])~?(?:/{_PATH_STEP})+/")
_WINDOWS_FOLDERS = re.compile(rf"(?:\b[A-Za-z]:|~)\\+(?:{_PATH_STEP}\\+)*")


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


def run(arguments):
    """Run the doctor; return 0 when all is well, 1 with errors."""
    if sys.stderr.isatty():  # who waits there; files hold the report alone
        print(
            "Trying TensorFlow in processes of its own: some 20 seconds.",
            file=sys.stderr,
            flush=True,
        )
    report = examine()
    print(json.dumps(report, indent=1) if arguments.json else text(report))
    return 1 if report["errors"] else 0


def examine():
    """Look at everything; return a dict that JSON can hold."""
    installed = versions.installed()
    findings = versions.check(installed)
    facts = {}
    if installed["tensorflow"] is not None:
        # Both run at once, since each imports TensorFlow, which takes seconds.
        probe, matmul = _start_probe(), _start_probe("matmul")
        facts, probe_findings = _probe_findings(probe)
        matmul_finding = _matmul_finding(matmul)
        findings += probe_findings
        if "tensorflow" in facts:
            findings.append(matmul_finding)
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


def _start_probe(*arguments):
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
        return process.communicate(timeout=_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        return out, err + f"\nstopped after {_TIMEOUT_SECONDS} seconds"


def _probe_findings(process):
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
    findings = list(_fact_findings(facts)) if loaded else []
    if facts.pop("done", None) is None:
        output = err if loaded else err + out
        why, fix, message = explain(output, process.returncode)
        subject = "TensorFlow" if loaded else "import tensorflow"
        crashed = "it crashed: " if loaded else ""
        message = f"{crashed}{why} ({message})"
        findings.append(Finding(ERROR, subject, message, fix))
    return facts, findings


def _fact_findings(facts):
    """Yield a finding for each fact."""
    backend = facts.get("keras", {}).get("backend")
    if backend not in (None, "tensorflow"):
        message = f"expected tensorflow. Received: {backend}"
        fix = "export KERAS_BACKEND=tensorflow, or edit ~/.keras/keras.json"
        yield Finding(ERROR, "Keras backend", message, fix)
    devices = facts.get("devices", {})
    if "error" in devices:
        yield Finding(ERROR, "devices", devices["error"])
    accelerators = devices.get("accelerators", [])
    has_metal = any(d["platform"] == "Metal" for d in accelerators)
    if "accelerators" in devices:
        names = [f"{d['name']} ({d['platform']})" for d in accelerators]
        remark = "; this is Metal" if has_metal else "" if names else " only"
        yield Finding(OK, "devices", ", ".join(["CPU", *names]) + remark)
    yield from _training_findings(facts)
    xla = facts.get("xla", {})
    if xla.get("works"):
        message_of_xla = "works on the CPU" + (
            "; Metal has none" if has_metal else ""
        )
        yield Finding(OK, "XLA", message_of_xla)
    elif xla:
        message = f"does not work: {xla.get('error', 'wrong result')}"
        yield Finding(NOTE, "XLA", message)
    on_gpu = facts.get("xla_gpu", {})
    if on_gpu.get("works"):
        message = "works on the GPU: Keras compiles with it by default"
        yield Finding(OK, "XLA", message)
    elif on_gpu:
        message = f"fails on the GPU: {on_gpu.get('error', 'wrong result')}"
        fix = "compile(..., jit_compile=False)"
        yield Finding(ERROR, "XLA", message, fix)
    yield from cuda.judge(facts.get("cuda", {}))


def _training_findings(facts):
    reference = None
    for result in facts["training"]:
        device, level, fix = result.get("device", "a device"), OK, ""
        losses = result.get("losses")
        if losses is None:
            level, message = ERROR, f"it stops: {result['error']}"
        elif reference is None:
            reference = losses
            loss_text = ", ".join(f"{loss:.4f}" for loss in losses)
            message = f"a two-layer model trains on {device} (loss {loss_text})"
        else:
            # NumPy is there, now that TensorFlow has trained.
            from keras_pergrad.checking import numerics

            verdict = numerics.judge(reference, losses, "float32", terms=32)
            message = f"the same loss on {device} (to {verdict.relative:.0e})"
            if not verdict.ok:
                level = ERROR
                fix = "keras_pergrad.diagnose.compare_devices names the op"
                message = (
                    f"the loss on {device} differs from the CPU's by "
                    f"{verdict.error:.3g}: not rounding"
                )
        yield Finding(level, "training", message, fix)


def _matmul_finding(process):
    out, _ = _finish(process)
    if process.returncode == 0 and out.strip().endswith("right"):
        return Finding(OK, "matmul", "right (oneDNN's known defect is absent)")
    failure = "gave wrong numbers" if "wrong" in out else "crashed"
    return Finding(
        WARNING,
        "matmul",
        f"[b, 1, t, k] times [k, n] {failure}: a defect of oneDNN in "
        f"TensorFlow; keras_pergrad avoids that shape, other code may not",
        "TF_ENABLE_ONEDNN_OPTS=0 in the environment, if a model of yours "
        "multiplies such shapes",
    )


def explain(output, code):
    """Return why an import failed, the fix, and the line that tells it."""
    for pattern, why, fix in _KNOWN_FAILURES:
        if re.search(pattern, output):
            return why, fix, _telling_line(output, pattern)
    if code < 0 and -code in _SIGNALS:
        why, fix = _SIGNALS[signal.Signals(-code)]
        return why, fix, _telling_line(output, "")
    return (
        f"`import tensorflow` ended with code {code}",
        "pip install --force-reinstall tensorflow; if it stays, report it "
        "with the output of --json",
        _telling_line(output, ""),
    )


def _telling_line(output, pattern):
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    matches = [line for line in lines if pattern and re.search(pattern, line)]
    last_line = (matches or lines or [""])[-1]
    return without_paths(last_line)[:300]


def without_paths(text):
    """Remove folders and this user's name from a text."""
    home, names = _user_names()
    if home:
        text = re.sub(re.escape(home) + r"(?!\w)", "~", text, flags=re.I)
    text = _HOME_FOLDERS.sub("~", text)
    for name in names:
        pattern = rf"(?<!\w){re.escape(name)}(?!\w)"
        text = re.sub(pattern, "...", text, flags=re.I)
    text = _WINDOWS_FOLDERS.sub(r"...\\", text)
    return _FOLDERS.sub(".../", text)


def _user_names():
    """Return the user's home folder, if known, and names that tell the user."""
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
