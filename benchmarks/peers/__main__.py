"""A worker: one framework in one process, told what to do line by line.

    python -m benchmarks.peers tensorflow

Requests and replies are one JSON object a line, on stdin and stdout.
"""

import importlib
import json
import os
import sys
import traceback

from benchmarks.peers import measure


def serve(framework, requests, replies):
    """Answers requests until there are none left."""
    module = importlib.import_module(f"benchmarks.peers.{framework}")
    jobs = {}
    for line in requests:
        request = json.loads(line)
        try:
            reply = answer(module, jobs, **request)
        except Exception as error:
            traceback.print_exc()
            reply = {"error": _in_a_line(error)}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def answer(module, jobs, do, *, key=None, **what):
    """One request: prepare a job, time it once, measure it alone, or values."""
    if do == "prepare":
        job = module.build(**what)
        reply = measure.check(job, what["task"])
        jobs[key] = job
        return reply
    if do == "time":
        return {"ms": measure.repetition(jobs[key].step)}
    if do == "alone":
        return measure.alone(module.build, what, getattr(module, "card", None))
    if do == "values":
        return {"values": module.values(**what)}
    raise ValueError(f"unknown request {do!r}")


def _in_a_line(error):
    """What went wrong; TensorFlow's long texts say it in their last line."""
    lines = str(error).strip().splitlines() or [""]
    line = lines[-1] if lines[0].startswith("in user code") else lines[0]
    return f"{type(error).__name__}: {line.strip()[:200]}"


def main():
    # Libraries print to stdout, too: they get stderr instead.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(sys.argv[1], sys.stdin, replies)


if __name__ == "__main__":
    main()
