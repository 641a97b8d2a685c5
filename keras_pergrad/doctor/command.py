"""The command `doctor`: a list of facts about this machine, or about a Mac."""

import json
import os
import platform
import subprocess
import sys

from keras_pergrad.doctor import probe, versions
from keras_pergrad.doctor.versions import (
    ERROR,
    NOTE,
    OK,
    WARNING,
    Finding,
)

_TIMEOUT_SECONDS = 300
_MARKS = {OK: "ok", NOTE: "note", WARNING: "warn", ERROR: "ERROR"}


def add_to(subcommands):
    """Add `doctor` to a parser's subcommands."""
    parser = subcommands.add_parser(
        "doctor",
        help="say whether this machine can train, where, and what to fix",
    )
    parser.add_argument("--json", action="store_true", help="for bug reports")
    parser.add_argument(
        "--for",
        dest="planned",
        choices=["metal"],
        help="say what to install on a Mac with Apple silicon, and what fails "
        "there; works on any machine",
    )
    parser.set_defaults(run=run)


def run(arguments):
    """Run the doctor; return 0 when all is well, 1 with errors."""
    if arguments.planned:
        report = report_for_metal()
    else:
        if sys.stderr.isatty():  # who waits there; files hold the report alone
            print(
                "Trying TensorFlow in a process of its own: some 20 seconds.",
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
    if installed["tensorflow"] is not None:
        findings += _probe_findings()
    system = f"{platform.system()} {platform.machine()}"
    return _report(system, installed, findings)


def report_for_metal():
    """Return the report for a Mac on which TensorFlow is to use Metal."""
    installed = versions.installed()
    findings = versions.check_for_metal(installed)
    return _report("for a Mac with Metal", installed, findings)


def _report(system, installed, findings):
    return {
        "system": system,
        "versions": installed,
        "findings": [vars(finding) for finding in findings],
        "errors": sum(finding.level == ERROR for finding in findings),
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


def _probe_findings():
    """Return what the trials found, and how their process ended."""
    process = subprocess.Popen(
        [sys.executable, "-m", probe.__name__],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
    )
    try:
        out, err = process.communicate(timeout=_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        err += f"\nstopped after {_TIMEOUT_SECONDS} seconds"
    lines = [line for line in out.splitlines() if line.startswith(probe.MARK)]
    finished = probe.DONE in lines
    findings = [
        Finding(**json.loads(line.removeprefix(probe.MARK)))
        for line in lines
        if line != probe.DONE
    ]
    if not finished:
        # A stack trace has its addresses behind "@".
        printed = [line for line in err.splitlines() if "@  " not in line]
        last_lines = " / ".join(printed[-3:])
        message = f"it ended with code {process.returncode}: {last_lines}"
        fix = "mend the errors above, or reinstall TensorFlow"
        findings.append(Finding(ERROR, "TensorFlow", message, fix=fix))
    return findings
