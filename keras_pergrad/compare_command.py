"""`python -m keras_pergrad compare`: a comparison of runs on one screen.

NumPy is loaded only when the command runs: `doctor` shares its program, and
has to start where nothing else does.
"""

import sys


def add_to(subcommands):
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
    parser.set_defaults(run=run)


def run(chosen):
    """Print the comparison; return 0, or 2 where there is none."""
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
