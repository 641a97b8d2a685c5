"""The table of advice on a stall: when, what to say, and what to write.

The first row that applies is the first to follow: mistakes, then what costs
one line, then what takes work. `stall_causes` says when a row applies. A gain
is given only where it was measured; otherwise `profile_pipeline` tells.
"""

import collections.abc
import dataclasses

from keras_pergrad.stalls import stall_causes as causes


@dataclasses.dataclass
class Advice:
    """One cause and the code that removes it.

    Attributes:
        name: What it is called in tests and documentation.
        cause: One or two sentences.
        code: Lines that run as they stand, given the names in them.
        gain_ms: The most it can save of a batch's time, where that was
            measured; None where only trying tells.
        is_mistake: Whether training itself differs from what was meant, or one
            line undoes the purpose of another.
    """

    name: str
    cause: str
    code: str
    gain_ms: float | None
    is_mistake: bool = False


@dataclasses.dataclass
class Rule:
    """One row of the table of advice.

    Attributes:
        name: That of the `Advice`.
        kind: The kind of `Facts` that it is for.
        when: Function of the `Facts`: None where the advice does not apply,
            else the values in the texts, and the measured `gain` if there is.
        cause, code: Texts of the `Advice`, with `{values}` in them.
        is_mistake: As in `Advice`.
        without_stall: Whether it also applies where the data comes in time.
        of_the_start: Whether it looks at how late the first batch was.
    """

    name: str
    kind: str
    when: collections.abc.Callable
    cause: str
    code: str
    is_mistake: bool = False
    without_stall: bool = False
    of_the_start: bool = False

    def advice(self, facts):
        """Return the `Advice` on these facts, or None."""
        values = self.when(facts)
        if values is None:
            return None
        return Advice(
            self.name,
            self.cause.format(**values),
            self.code.format(**values),
            values.get("gain"),
            self.is_mistake,
        )


def advise(facts, stalled=True, starts_late=False):
    """Return the advice on these facts, the first to follow first.

    Without a stall, only that of rules which apply all the same, or to a first
    batch that is late.
    """
    rules = [
        rule
        for rule in RULES
        if rule.kind == facts.kind
        and (
            stalled or rule.without_stall or (starts_late and rule.of_the_start)
        )
    ]
    answers = [rule.advice(facts) for rule in rules]
    return [advice for advice in answers if advice is not None]


RULES = (
    Rule(
        "cache after random augmentation",
        "dataset",
        causes.random_cache,
        "`cache` stands after `{stage}`, which draws random numbers: every "
        "epoch gets the first one's draws. Cache what goes in, draw later.",
        "dataset = dataset.cache()\n"
        "dataset = dataset.map(\n"
        "    {function}, num_parallel_calls=tf.data.AUTOTUNE)",
        is_mistake=True,
        without_stall=True,
    ),
    Rule(
        "prefetch",
        "dataset",
        causes.no_prefetch,
        "The pipeline does not end in a prefetch: it stands still while the "
        "model computes, and the model stands still while it works.",
        "dataset = dataset.prefetch(tf.data.AUTOTUNE)",
    ),
    Rule(
        "prefetch to device",
        "dataset",
        causes.long_copy,
        "The copy of a batch to {device} takes {copy:.3g} of the {step:.3g} "
        "ms of a step. As the last stage, this copies ahead:",
        'copied = tf.data.experimental.prefetch_to_device("{device}")\n'
        "dataset = dataset.apply(copied)",
        without_stall=True,
    ),
    Rule(
        "shuffle buffer",
        "dataset",
        causes.late_shuffle,
        "`shuffle({buffer})` fills its buffer with {content} before the first "
        "batch, which came after {late}. Shuffle {instead}.",
        "dataset = dataset.shuffle({buffer}){then}",
        of_the_start=True,
    ),
    Rule(
        "python map",
        "dataset",
        causes.python_map,
        "`{stage}` computes in Python, where threads take turns:",
        "import concurrent.futures as futures, multiprocessing as mp\n"
        "pool = futures.ProcessPoolExecutor({count}, mp.get_context('fork'))\n"
        "in_process = lambda *a: pool.submit(python_function, *a).result()\n"
        "# in the map: tf.numpy_function(in_process, ...), or TensorFlow ops\n"
        "dataset = dataset.map({function}, num_parallel_calls={calls})",
    ),
    Rule(
        "from_generator",
        "dataset",
        causes.generator,
        "`from_generator` runs in one Python thread. Load elements by number, "
        "side by side: `load(i)` gives element i of `count`, a tuple.",
        "specs = dataset.element_spec\n"
        "types = [spec.dtype for spec in specs]\n"
        "def read(i):\n"
        "    parts = tf.py_function(lambda i: load(int(i)), [i], types)\n"
        "    return tuple(tf.ensure_shape(part, spec.shape)\n"
        "                 for part, spec in zip(parts, specs))\n"
        "dataset = tf.data.Dataset.range(count)\n"
        "dataset = dataset.map(read, num_parallel_calls={calls}){pool}",
    ),
    Rule(
        "batch first",
        "dataset",
        causes.cheap_map,
        "Calling `{stage}` for each of the {size} elements of a batch costs "
        "more than what it does. If it takes all alike, call it once:",
        "dataset = dataset.batch({size}).map({function})",
    ),
    Rule(
        "interleave",
        "dataset",
        causes.one_source_at_a_time,
        "`{stage}` reads one source (a file, a shard) at a time.",
        "dataset = {call}{pool}",
    ),
    Rule(
        "parallel map",
        "dataset",
        causes.too_few_calls,
        "`{stage}` {how}",
        "dataset = dataset.map({function}, num_parallel_calls={calls}){pool}",
    ),
    Rule(
        "cache",
        "dataset",
        causes.no_cache,
        "All up to `{stage}` computes the same in every epoch.",
        "dataset = dataset.cache()  # after the map, before shuffle\n"
        "# cache('a_file_name') if memory is short",
    ),
    Rule(
        "few workers",
        "pydataset",
        causes.few_workers,
        "The PyDataset `{name}` loads its batches {how}.",
        "dataset.workers = {count}{more}",
    ),
    Rule(
        "threads that compute",
        "pydataset",
        causes.computing_threads,
        "The {threads} workers are threads and compute, and Python lets one "
        "of them run at a time. Processes compute side by side.",
        "dataset.workers = {count}\ndataset.use_multiprocessing = True",
    ),
    Rule(
        "python generator",
        "generator",
        lambda facts: {},
        "A Python generator runs in one thread.",
        "class Data(keras.utils.PyDataset):\n"
        "    def __len__(self): return batches\n"
        "    def __getitem__(self, i): return load(i)  # x, y of batch i\n"
        "model.fit(Data(workers=4))",
    ),
    Rule(
        "num_workers",
        "dataloader",
        causes.no_loader_workers,
        "The DataLoader loads its batches in the training process.",
        "loader = torch.utils.data.DataLoader(\n"
        "    loader.dataset, sampler=loader.sampler,\n"
        "    batch_size=loader.batch_size, collate_fn=loader.collate_fn,\n"
        "    drop_last=loader.drop_last, num_workers={count})",
    ),
    Rule(
        "grain workers",
        "grain",
        causes.no_grain_workers,
        "Grain loads its samples {how}",
        "{code}",
    ),
)
