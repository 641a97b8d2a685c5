"""Both plugins for Metal on a Mac, each in an environment of its own.

    python3.12 examples/try_metal.py

Needs a clone of this repository, a Mac with Apple silicon, Python 3.11 or 3.12,
and for the community's plugin, which is compiled here, macOS 15 and Apple's
command-line tools (`xcode-select --install`). Installs Apple's tensorflow-metal
into `build/metal/apple` and the community's tensorflow-metal-plugin into
`build/metal/community`, runs `device_placement.py` in both, and writes
`metal_report.json`: what each of them printed and found, or where it failed.
One of the models is matmul, bias and relu, which Metal fuses in compiled steps.
There are no personal paths in the file.
"""

import argparse
import json
import pathlib
import platform
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
#: Plugin → what pip installs, one call after the other: the community's is
#: compiled against a TensorFlow that must be there already.
PLUGINS = {
    "apple": [[f"{ROOT}[metal]"]],
    "community": [["tensorflow==2.21.*"], [f"{ROOT}[metal-community]"]],
}


def try_plugin(name, installs, folder):
    """Installs and runs; returns what was found, or how it failed."""
    python = folder / name / "bin" / "python"
    saved = folder / f"{name}.json"
    saved.unlink(missing_ok=True)
    pip = [python, "-m", "pip", "install", "--quiet"]
    commands = [
        [sys.executable, "-m", "venv", folder / name],
        *([*pip, *wanted] for wanted in installs),
        [python, HERE / "device_placement.py", "--save", saved],
    ]
    for command in commands:
        words = [without_paths(str(word)) for word in command]
        print(f"{name}: {' '.join(words)}", flush=True)
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            output = without_paths(done.stdout + done.stderr)
            print(output[-2000:])
            return {
                "failed": " ".join(words),
                "code": done.returncode,
                "output": output[-8000:],
                "doctor": doctor(python),
            }
    return json.loads(saved.read_text())


def doctor(python):
    """What the doctor says in an environment; None: it is not there."""
    command = [python, "-m", "keras_pergrad", "doctor", "--json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
        return json.loads(without_paths(done.stdout))
    except (OSError, json.JSONDecodeError):
        return None


def without_paths(text):
    """Cuts off this clone's folder, and the user's, which has a name."""
    return text.replace(str(ROOT), "...").replace(str(pathlib.Path.home()), "~")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--save", type=pathlib.Path, default="metal_report.json", metavar="FILE"
    )
    chosen = parser.parse_args()
    folder = ROOT / "build" / "metal"
    folder.mkdir(parents=True, exist_ok=True)
    report = {
        "system": f"{platform.system()} {platform.machine()}",
        "macos": platform.mac_ver()[0],
        "python": platform.python_version(),
    }
    for name, installs in PLUGINS.items():
        report[name] = try_plugin(name, installs, folder)
        chosen.save.write_text(json.dumps(report, indent=1))
    print(f"saved: {chosen.save.name}")


if __name__ == "__main__":
    main()
