"""`python -m keras_pergrad doctor` and `compare`."""

import argparse
import sys

from keras_pergrad import compare_command
from keras_pergrad.doctor import command as doctor_command


def main(arguments=None):
    """Runs a subcommand and returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m keras_pergrad")
    subcommands = parser.add_subparsers(dest="command", required=True)
    doctor_command.add_to(subcommands)
    compare_command.add_to(subcommands)
    chosen = parser.parse_args(arguments)
    return chosen.run(chosen)


if __name__ == "__main__":
    sys.exit(main())
