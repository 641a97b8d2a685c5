"""Draws in processes of their own, each with one thread."""

import collections
import concurrent.futures
import multiprocessing
import os
import time

#: After so many draws a process ends, and with it what TensorFlow keeps.
CHUNK = 50
#: What takes time in the optimising of graphs. Not what drops ops that nobody
#: waits for: gradients of functions that need none cannot be run.
_OPTIMISERS = (
    "arithmetic_optimization",
    "auto_mixed_precision",
    "constant_folding",
    "debug_stripper",
    "layout_optimizer",
    "loop_optimization",
    "pin_to_host_optimization",
    "remapping",
    "scoped_allocator_optimization",
    "shape_optimization",
)


def prepare():
    """Sets up a process: one thread, and no time for optimising graphs."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    import tensorflow as tf

    tf.get_logger().setLevel("ERROR")
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.optimizer.set_experimental_options(
        dict.fromkeys(_OPTIMISERS, False)
    )


def look(seed, indices):
    """Judges some draws.

    Returns:
        (index, its verdicts, seconds of processor time) of each.
    """
    from tests.hunt import cases, judge

    found = []
    for index in indices:
        begin = time.process_time()
        verdicts = judge.judge(cases.draw(seed, index))
        found.append((index, verdicts, time.process_time() - begin))
    return found


def spread(function, jobs, workers):
    """Yields function(*job) of every job as it comes, from processes."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(
        workers, context, prepare, max_tasks_per_child=1
    ) as pool:
        futures = [pool.submit(function, *job) for job in jobs]
        for future in concurrent.futures.as_completed(futures):
            yield future.result()


def hunt(seed, first, count, workers, tell=lambda text: None):
    """Judges `count` draws of a seed.

    Args:
        seed: an integer.
        first: the number of the first draw.
        count: how many.
        workers: how many processes.
        tell: called with a line now and then.

    Returns:
        A list of (index, verdicts, seconds), in order.
    """
    last = first + count
    jobs = [
        (seed, range(k, min(k + CHUNK, last)))
        for k in range(first, last, CHUNK)
    ]
    found, begin = [], time.perf_counter()
    for part in spread(look, jobs, workers):
        found += part
        counts = outcomes(found)
        spent = time.perf_counter() - begin
        failed = [
            k for k, verdicts, _ in part if any(v.failed for v in verdicts)
        ]
        tell(f"{len(found)}/{count} in {spent:.0f} s: {counts} {failed}")
    return sorted(found, key=lambda f: f[0])


def outcomes(found):
    """How many draws had which worst outcome, as a dict."""
    from tests.hunt import judge

    order = [
        *judge.FAILURES,
        judge.INVALID,
        judge.UNCLEAR,
        judge.REFUSED,
        judge.SERVED,
    ]
    counts = collections.Counter(
        min((v.outcome for v in verdicts), key=order.index)
        for _, verdicts, _ in found
    )
    return {name: counts[name] for name in order if counts[name]}
