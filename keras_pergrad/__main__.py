"""`python -m keras_pergrad doctor`."""

import argparse
import sys

from keras_pergrad.doctor import command


def main(arguments=None):
    """Runs a subcommand and returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m keras_pergrad")
    subcommands = parser.add_subparsers(dest="command", required=True)
    command.add_to(subcommands)
    chosen = parser.parse_args(arguments)
    return chosen.run(chosen)


if __name__ == "__main__":
    sys.exit(main())
