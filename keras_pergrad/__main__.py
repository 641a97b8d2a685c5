"""The commands `doctor`, `show` and `compare`, and `--version`."""

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
    _add_show(subcommands)
    _add_compare(subcommands)
    chosen = parser.parse_args(arguments)
    return chosen.run(chosen)


def _program():
    """Return what the user has typed, for the help."""
    called = pathlib.Path(sys.argv[0]).stem
    return called if called == "keras-pergrad" else "python -m keras_pergrad"


def _add_show(subcommands):
    """Add `show` to a parser's subcommands."""
    parser = subcommands.add_parser(
        "show", help="write a page that shows a recorded run"
    )
    parser.add_argument(
        "dir",
        help="a run's directory, or a log_dir of GradientVariance: all its "
        "runs",
    )
    parser.add_argument(
        "--html",
        metavar="FILE",
        help="the file to write (default: index.html in the run's directory)",
    )
    parser.set_defaults(run=_show)


def _show(chosen):
    """Write a page of each run; return 0, or 2 where there is none."""
    # NumPy is loaded here: `doctor` has to start without it.
    from keras_pergrad.runs import list_runs, page, run_folder

    try:
        paths = [chosen.dir]
        if not run_folder.is_run(chosen.dir):
            paths = list_runs(chosen.dir)
            if not paths:
                raise ValueError(
                    f"`dir` expected a directory with runs. Received: none in "
                    f"{chosen.dir!r}."
                )
        if chosen.html and len(paths) > 1:
            raise ValueError(
                f"`--html` expected one run. Received: {len(paths)} runs in "
                f"{chosen.dir!r}. Name the directory of one of them, or leave "
                "`--html` out."
            )
        for path in paths:
            print(f"Written: {page(path, to=chosen.html)}")
    except (ImportError, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


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
    parser.add_argument(
        "--fail-if",
        nargs="+",
        default=[],
        metavar="CONDITION",
        help="exit with 1 if: diverged (the gradients of runs of one seed), "
        "slower=5%% (steps of the last directory or newest run), stall=10%% "
        "(of its time is spent waiting for data)",
    )
    parser.set_defaults(run=_compare)


def _compare(chosen):
    """Print the comparison; return 0, 1 if it fails, or 2 without any."""
    # NumPy is loaded here: `doctor` has to start without it.
    from keras_pergrad.runs import guard
    from keras_pergrad.runs.comparison import compare_runs

    try:
        conditions = list(map(guard.parse, chosen.fail_if))
        comparison = compare_runs(
            chosen.dir, by=chosen.by, tolerance=chosen.tolerance
        )
        print(comparison)
        if chosen.html:
            print(f"Written: {comparison.to_html(chosen.html)}")
        failures = guard.failures(comparison, chosen.dir, conditions)
    except (ImportError, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    for failure in failures:
        print(f"FAILED {failure}", file=sys.stderr)
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
