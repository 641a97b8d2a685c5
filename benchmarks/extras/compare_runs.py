"""Time and memory of comparing many long runs.

    python -m benchmarks.extras.compare_runs --runs 100 --records 10000

writes made-up records (4.8 GB with the defaults, removed at the end), then
compares them in a process of its own, so that its memory can be told (on
Linux).
"""

import argparse
import json
import subprocess
import sys
import tempfile

import numpy as np

from keras_pergrad.runs import Reading, RunInfo
from keras_pergrad.runs.recorder import Recorder

VARIABLES, SKETCH = 10, 1024

COMPARE = """
import json, re, sys, time
sys.argv = ["-m"]  # as the command does, without TensorFlow
sys.orig_argv = ["python", "-m", "keras_pergrad"]
from keras_pergrad.runs.comparison import compare_runs

def peak():  # KiB; what getrusage tells includes the parent process
    status = open("/proc/self/status").read()
    return int(re.search(r"VmHWM:\\s+(\\d+)", status)[1])

before, start, cpu = peak(), time.perf_counter(), time.process_time()
comparison = compare_runs(sys.stdin.read(), by="group")
text, page = str(comparison), comparison._repr_html_()
print(json.dumps({
    "seconds": time.perf_counter() - start,
    "cpu": time.process_time() - cpu,
    "memory": peak() - before,
    "page": len(page),
}))
"""


def write(log_dir, runs, records, *, repeats):
    """Runs of which each `repeats` share a seed, with a little noise."""
    random = np.random.default_rng(0)
    path = random.normal(size=(records, SKETCH)).astype("float32")
    variables = [{"path": f"v{k}", "shape": [SKETCH]} for k in range(VARIABLES)]
    of_seed = 0
    for r in range(runs):
        if r % repeats == 0:
            of_seed = random.normal(size=SKETCH)
        # Seeds differ from the start, as they do; repeats by rounding.
        noise = 1e-6 * random.normal(size=SKETCH)
        info = RunInfo(
            f"run {r:04}",
            *("architecture", "probe", 64, variables, SKETCH),
            seed=r // repeats,
            tags={"group": r % 2},
        )
        sketches = path + (0.3 * of_seed + noise).astype("float32")
        small = 0.25 + 0.1 * of_seed[0] + noise[0]
        with Recorder.start(log_dir, info) as recorder:
            for step, sketch in enumerate(sketches):
                recorder.append(
                    made_up(step, 32.1 + r / 1000),
                    variable_sketches=np.full((VARIABLES, 16), small),
                    sketch=sketch,
                )


def made_up(step, norm):
    """Return a reading."""
    return Reading(
        step=step,
        epoch=step // 100,
        samples=64,
        loss=1.2345678,
        figures={
            "gradient_norm": norm,
            "gradient_variance": 12.345678,
            "gradient_noise_scale": 0.567891,
        },
        by_variable={
            name: np.ones(VARIABLES, "float32")
            for name in ("norm", "noise_scale", "snr")
        },
        variable_names=tuple(f"v{k}" for k in range(VARIABLES)),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=2)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as log_dir:
        write(log_dir, chosen.runs, chosen.records, repeats=chosen.repeats)
        done = subprocess.run(
            [sys.executable, "-c", COMPARE],
            input=log_dir,
            capture_output=True,
            text=True,
            check=True,
        )
    found = json.loads(done.stdout)
    print(
        f"{chosen.runs} runs × {chosen.records} records: "
        f"{found['seconds']:.1f} s, {found['cpu']:.1f} s of CPU, "
        f"{found['memory'] / 1024:.0f} MiB more, page of "
        f"{found['page'] / 1024:.0f} KiB"
    )


if __name__ == "__main__":
    main()
