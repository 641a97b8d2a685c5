"""The commands `keras-pergrad doctor` and `compare`, and `--version`."""

import argparse
import pathlib
import sys

from keras_pergrad import __version__
from keras_pergrad.doctor import command as doctor_command


def main(arguments=None):
    """Run a subcommand and return the exit code."""
    parser = argparse.ArgumentParser(prog=_program())
    parser.add_argument(
        "--version", action="version", version=f"keras-pergrad {__version__}"
    )
    subcommands = parser.add_subparsers(dest="command", required=True)
    doctor_command.add_to(subcommands)
    _add_compare(subcommands)
    chosen = parser.parse_args(arguments)
    return chosen.run(chosen)


def _program():
    """Return what the user has typed, for the help."""
    called = pathlib.Path(sys.argv[0]).stem
    return called if called == "keras-pergrad" else "python -m keras_pergrad"


def _add_compare(subcommands):
    """Add `compare` to a parser's subcommands."""
    parser = subcommands.add_parser(
        "compare",
        help="say whether the gradients of recorded runs agree",
    )
    parser.add_argument(
        "dir",
        nargs="+",
        help="log_dir of GradientVariance; several are joined",
    )
    parser.add_argument(
        "--by",
        metavar="TAG",
        help="compare groups: a tag, or device, seed, machine or mode",
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        default=1e-3,
        help="differences of a variable's gradient, relative to its norm, "
        "up to which runs count as equal (default: 0.001)",
    )
    parser.add_argument(
        "--html", metavar="FILE", help="also write a page with charts"
    )
    parser.set_defaults(run=_compare)


def _compare(chosen):
    """Print the comparison; return 0, or 2 where there is none."""
    # NumPy is loaded here: `doctor` has to start without it.
    from keras_pergrad.runs.comparison import compare_runs

    try:
        comparison = compare_runs(
            chosen.dir, by=chosen.by, tolerance=chosen.tolerance
        )
        print(comparison)
        if chosen.html:
            print(f"Written: {comparison.to_html(chosen.html)}")
    except (ImportError, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
