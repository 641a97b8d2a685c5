"""`keras-pergrad doctor` and `compare`, also by `python -m keras_pergrad`."""

import argparse
import pathlib
import sys

from keras_pergrad import compare_command
from keras_pergrad.doctor import command as doctor_command


def main(arguments=None):
    """Run a subcommand and return the exit code."""
    parser = argparse.ArgumentParser(prog=_program())
    subcommands = parser.add_subparsers(dest="command", required=True)
    doctor_command.add_to(subcommands)
    compare_command.add_to(subcommands)
    chosen = parser.parse_args(arguments)
    return chosen.run(chosen)


def _program():
    """What the user has typed, for the help."""
    called = pathlib.Path(sys.argv[0]).stem
    return called if called == "keras-pergrad" else "python -m keras_pergrad"


if __name__ == "__main__":
    sys.exit(main())
