"""What the proof says of many models: the judge of a change to `proof/`.

Models that mix the samples and sound ones like them, real models, further
kinds, Keras's layers and drawn models go through `explain` and through the
training steps of the modes. Nothing runs: a step is traced up to its proof.
The mode "accumulated" is tried where another one refuses. A line of JSON for
each kind and mode has

- the verdict: "served", "refused", "crashed", or "invalid" (plain Keras fails,
  too), and the whole message;
- the types of the model's outputs, of the loss and at each use of a weight;
- how each variable is served, as `explain` tells;
- the type of each tensor of the step that is not free;
- the milliseconds of processor time of the proof, the median of three, and of
  the search for uses before it.

Of each op with a type rule there is a line with the types of its outputs for
all places where its inputs may have the samples.

    python -m benchmarks.steps.proof_baseline write FILE
        [--only mixing,real,...] [--every N] [--kind PART] [--seed N]
        [--draws N] [--workers N]
    python -m benchmarks.steps.proof_baseline compare OLD NEW [--in-both]
    python -m benchmarks.steps.proof_baseline compact FILE OUT

`write` saves after each part. `--every 5` goes through every fifth kind: with
`compare --in-both`, a first answer in a few minutes. `compare` prints each
difference and the ratios of the times, and exits with 1 if anything but the
times differs. `compact` writes a short form, a line a kind, with hashes in
place of long texts. `compare` takes that, too: it then says where there is a
difference and not which.

proof_baseline.txt is the short form of all kinds on the newest pair. Its times
are of a busy machine: only files that are written by turns tell which tree is
faster. It takes roughly half an hour of processor time:

    python -m benchmarks.steps.proof_baseline write FILE
    python -m benchmarks.steps.proof_baseline compact FILE \
        benchmarks/results/proof_baseline.txt

A name of a file that ends with .gz is compressed. What the script uses of the
package beside its public names stands in proof_hooks.py.
"""

import argparse
import gc
import gzip
import hashlib
import json
import pathlib
import re
import statistics
import sys

from tests.hunt import workers

#: Kinds that one process goes through before another takes over.
CHUNK = 80
MODES = ("explain", "vectorized", "per_sample", "accumulated")
#: That of ops alone, and of what could not be made.
_OTHER_MODES = ("types", "made")
SETS = ("rules", "mixing", "layers", "real", "further", "hunt")
#: What must not differ. Of tensors those that both files have are compared.
STRICT = ("verdict", "message", "types", "uses")
_UNSTABLE = (
    # Where the tree is.
    (re.compile(r"(?<=made in )/\S+?/(?=(?:tests|benchmarks)/)"), ""),
    (re.compile(r"\x1b\[\d+m"), ""),
    (re.compile(r"0x[0-9a-f]{6,}"), "0x…"),
    # Functions of TensorFlow are numbered in a process.
    (re.compile(r"(__(?:inference|forward|backward)_\w*?)_\d+\b"), r"\1_…"),
)


def normalised(text):
    """The text without what differs from process to process."""
    for pattern, replacement in _UNSTABLE:
        text = pattern.sub(replacement, text)
    return text


def write(path, sets, draws, *, every=1, part="", processes=1):
    """Write the lines of the kinds of some sets.

    Args:
        sets: those of `SETS`.
        draws: (seed, how many) of the drawn models.
        every: 1 for all kinds, 5 for every fifth.
        part: a part of the names of the kinds.
    """
    jobs = []
    for name in sets:
        names = [n for n in _names(name, *draws)[::every] if part in n]
        jobs += [
            (name, names[k : k + CHUNK]) for k in range(0, len(names), CHUNK)
        ]
    rows = []
    for k, found in enumerate(workers.spread(rows_of, jobs, processes)):
        rows += found
        print(f"{k + 1}/{len(jobs)}: {len(rows)} lines", flush=True)
        # So that what was found is there if a later process dies.
        _save(path, rows)
    print(summary(rows))


def _save(path, rows):
    order = {name: k for k, name in enumerate(MODES)}
    rows.sort(key=lambda row: (row["kind"], order.get(row["mode"], -1)))
    with _opened(path, "wt") as file:
        file.writelines(
            json.dumps(row, ensure_ascii=False) + "\n" for row in rows
        )


def _names(name, seed, draws):
    if name == "hunt":
        return [f"{seed}/{index}" for index in range(draws)]
    from benchmarks.steps import proof_kinds

    return proof_kinds.names(name)


def rows_of(set_name, names):
    """The lines of some kinds of a set."""
    from benchmarks.steps import proof_kinds

    gc.set_threshold(50_000)  # To trace makes objects by thousands.
    gc.freeze()
    rows = []
    for name in names:
        rows += proof_kinds.rows(set_name, name, MODES)
    return [_normal(row) for row in rows]


def _normal(row):
    row["message"] = normalised(row["message"])
    for field in ("types", "uses"):
        row[field] = [normalised(line) for line in row[field]]
    row["tensors"] = {
        normalised(name): normalised(text)
        for name, text in row["tensors"].items()
    }
    return row


def summary(rows):
    """Return how many verdicts there are, and how long the proofs took."""
    counts = {}
    for row in rows:
        name = row["kind"].split("/")[0]
        key = f"{name}, {row['mode']}, {row['verdict']}"
        counts[key] = counts.get(key, 0) + 1
    lines = [f"{count:5} {key}" for key, count in sorted(counts.items())]
    kinds = len({row["kind"] for row in rows})
    proof, search = (
        sum(row[field] or 0 for row in rows) for field in ("ms", "search_ms")
    )
    lines.append(
        f"{kinds} kinds, {len(rows)} lines; proof {proof:.0f} ms, "
        f"search {search:.0f} ms"
    )
    return "\n".join(lines)


def compact(path, out):
    """Write the short form of a file: a line a kind, a cell a mode."""
    kinds = {}
    for row in read(path):
        kinds.setdefault(row["kind"], []).append(row)
    with _opened(out, "wt") as file:
        for kind, rows in kinds.items():
            texts = [row["message"].split("\n")[0] for row in rows]
            first = next((text[:100] for text in texts if text), "")
            cells = [kind, *map(_cell, rows), first]
            file.write("\t".join(cells).rstrip() + "\n")


def _cell(row):
    """Return the short form of a line, its verdict in one word."""
    fields = [row["mode"], row["verdict"].replace(" ", "")]
    fields += [_hashed(row[field]) for field in ("message", "types", "uses")]
    times = [row[field] for field in ("ms", "search_ms")]
    fields += [f"{ms:.1f}" for ms in times if ms is not None]
    return " ".join(fields)


def _hashed(value):
    if not value:
        return "-"
    text = json.dumps(value, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:6]


def read(path):
    """Return the lines of a file, whole or short."""
    with _opened(path, "rt") as file:
        lines = file.read().splitlines()
    if lines and lines[0].startswith("{"):
        return [json.loads(line) for line in lines]
    return [
        _of_cell(kind, cell)
        for kind, *cells in (line.split("\t") for line in lines)
        for cell in cells
        if cell.split(" ")[0] in (*MODES, *_OTHER_MODES)
    ]


def _of_cell(kind, cell):
    mode, verdict, message, types, uses, *times = cell.split(" ")
    ms, search_ms = (*map(float, times), None, None)[:2]
    return {
        **{"kind": kind, "mode": mode, "verdict": verdict},
        **{"message": message, "types": types, "uses": uses},
        **{"ms": ms, "search_ms": search_ms},
    }


def compare(old_path, new_path, in_both=False):
    """Print what differs; return whether anything but the times does.

    `in_both`: what only one of the files has is no difference.
    """
    old, new = ({_key(r): r for r in read(p)} for p in (old_path, new_path))
    if in_both:
        kinds = [{kind for kind, _ in rows} for rows in (old, new)]
        old, new = (
            {key: row for key, row in rows.items() if key[0] in kinds[1 - k]}
            for k, rows in enumerate((old, new))
        )
    if any("tensors" not in r for rows in (old, new) for r in rows.values()):
        old, new = _as_short(old), _as_short(new)
    differences = [
        *(f"only in {old_path}: {' '.join(k)}" for k in old if k not in new),
        *(f"only in {new_path}: {' '.join(k)}" for k in new if k not in old),
    ]
    untyped = typed = 0
    for key in old:
        if key not in new:
            continue
        a, b = old[key], new[key]
        for field in STRICT:
            if a[field] != b[field]:
                text = _difference(a[field], b[field])
                differences.append(f"{' '.join(key)}: {field}: {text}")
        first, second = a.get("tensors", {}), b.get("tensors", {})
        untyped += len(first.keys() - second.keys())
        typed += len(second.keys() - first.keys())
        differences += [
            f"{' '.join(key)}: tensor {name}: {first[name]} → {second[name]}"
            for name in first
            if name in second and first[name] != second[name]
        ]
    print("\n".join(differences))
    print(f"{len(differences)} differences in {len(old)} lines")
    print(f"tensors with a type only before: {untyped}, only now: {typed}")
    print(_times(old, new))
    return bool(differences)


def _key(row):
    return row["kind"], row["mode"]


def _as_short(rows):
    """Return lines with hashes, whether they had them or not."""
    return {
        key: _of_cell(row["kind"], _cell(row)) if "tensors" in row else row
        for key, row in rows.items()
    }


def _difference(a, b):
    if isinstance(a, list):
        gone = [line for line in a if line not in b]
        come = [line for line in b if line not in a]
        if gone or come:
            return "".join(
                f"\n  {sign} {line}"
                for sign, lines in (("−", gone), ("+", come))
                for line in lines
            )
        return "the same lines in another order, or another number of them"
    return f"\n  − {a}\n  + {b}"


def _times(old, new):
    lines, ratios = [], []
    for field, name in (("ms", "proof"), ("search_ms", "search")):
        pairs = [
            (old[k][field], new[k][field], k)
            for k in old
            if k in new and old[k][field] and new[k][field]
        ]
        if not pairs:
            continue
        before, after = (sum(p[i] for p in pairs) for i in (0, 1))
        lines.append(
            f"{name}: {before:.0f} → {after:.0f} ms, {after / before:.2f} ×"
        )
        if field == "ms":
            # Of less than 5 ms the clock tells little.
            ratios = [(b / a, k) for a, b, k in pairs if a >= 5]
    if ratios:
        middle = statistics.median(ratio for ratio, _ in ratios)
        worst = sorted(ratios)[-3:][::-1]
        texts = [f"{ratio:.2f} × {' '.join(key)}" for ratio, key in worst]
        lines.append(f"of a proof: median {middle:.2f} ×; {', '.join(texts)}")
    return "\n".join(lines)


def _opened(path, mode):
    opener = gzip.open if str(path).endswith(".gz") else open
    return opener(path, mode, encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.steps.proof_baseline",
        description="Write down, or compare, what the proof says of models.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("write")
    writing.add_argument("file", type=pathlib.Path)
    writing.add_argument("--only", default=",".join(SETS))
    writing.add_argument("--seed", type=int, default=0)
    writing.add_argument("--draws", type=int, default=150)
    writing.add_argument(
        "--every", type=int, default=1, help="each of so many kinds alone"
    )
    writing.add_argument("--kind", default="", help="a part of its name")
    writing.add_argument("--workers", type=int, default=1)
    for name, first, second in (
        ("compare", "old", "new"),
        ("compact", "file", "out"),
    ):
        command = commands.add_parser(name)
        command.add_argument(first, type=pathlib.Path)
        command.add_argument(second, type=pathlib.Path)
        if name == "compare":
            command.add_argument("--in-both", action="store_true")
    given = parser.parse_args()
    if given.command == "write":
        sets = given.only.split(",")
        unknown = set(sets) - set(SETS)
        if unknown:
            parser.error(f"--only expected {SETS}. Received: {unknown}")
        draws = given.seed, given.draws
        write(
            given.file,
            sets,
            draws,
            every=given.every,
            part=given.kind,
            processes=given.workers,
        )
    elif given.command == "compact":
        compact(given.file, given.out)
    else:
        sys.exit(compare(given.old, given.new, given.in_both))


if __name__ == "__main__":
    main()
