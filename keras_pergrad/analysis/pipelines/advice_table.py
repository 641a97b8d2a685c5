"""The table of advice on a stall: when, what to say, and what to write.

The first row that applies is the first to follow: mistakes, then what costs
one line, then what takes work. `stall_causes` and `loader_causes` say when a
row applies. A gain is given only where it was measured; otherwise
`profile_pipeline` tells.
"""

import functools

from keras_pergrad.analysis.pipelines import loader_causes
from keras_pergrad.analysis.pipelines import stall_causes as causes
from keras_pergrad.analysis.pipelines.pipeline_facts import Rule

TFDATA = (
    Rule(
        "cache after random augmentation",
        causes.frozen,
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
        causes.no_prefetch,
        "The pipeline does not end in a prefetch: it stands still while the "
        "model computes, and the model stands still while it works.",
        "dataset = dataset.prefetch(tf.data.AUTOTUNE)",
    ),
    Rule(
        "prefetch to device",
        causes.long_copy,
        "The copy of a batch to {device} takes {copy:.3g} of the {step:.3g} "
        "ms of a step. As the last stage, this copies ahead:",
        'copied = tf.data.experimental.prefetch_to_device("{device}")\n'
        "dataset = dataset.apply(copied)",
        without_stall=True,
    ),
    Rule(
        "shuffle buffer",
        functools.partial(causes.late_shuffle, of_batches=False),
        "`shuffle({buffer})` fills its buffer before the first batch, which "
        "came after {late}. Shuffle what goes into `{stage}` instead.",
        "dataset = dataset.shuffle({buffer})\n"
        "dataset = dataset.map(\n"
        "    {function}, num_parallel_calls=tf.data.AUTOTUNE)",
        of_the_start=True,
    ),
    Rule(
        "shuffle after batch",
        functools.partial(causes.late_shuffle, of_batches=True),
        "`shuffle` stands after `batch` and fills with whole batches before "
        "the first step ({late}). Single samples start sooner and mix too.",
        "dataset = dataset.shuffle({buffer}).batch({size})",
        of_the_start=True,
    ),
    Rule(
        "python map",
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
        causes.generator,
        "`from_generator` runs in one Python thread. Load elements by number, "
        "side by side: `load(i)` gives element i of `count`.",
        "def read(i):\n"
        "    p = tf.py_function(lambda i: {load}, [i], [{types}])\n"
        "    return {shaped}\n"
        "dataset = tf.data.Dataset.range(count)\n"
        "dataset = dataset.map(read, num_parallel_calls={calls}){pool}",
    ),
    Rule(
        "batch first",
        causes.cheap_map,
        "Calling `{stage}` for each of the {size} elements of a batch costs "
        "more than what it does. If it takes all alike, call it once:",
        "dataset = dataset.batch({size}).map({function})",
    ),
    Rule(
        "tiny files",
        causes.tiny_files,
        "`{stage}` opens a file for every {few:.2g} elements, which costs "
        "more than reading them. Write them once into a few large files:",
        "dataset.save(folder)  # once\ndataset = tf.data.Dataset.load(folder)",
    ),
    Rule(
        "interleave",
        causes.one_source_at_a_time,
        "`{stage}` reads one source (a file, a shard) at a time.",
        "dataset = files.interleave(\n"
        "    {function}, num_parallel_calls={calls}, "
        "deterministic=False){pool}",
    ),
    Rule(
        "parallel reads",
        causes.files_one_by_one,
        "`{stage}` reads its files one after the other.",
        "dataset = tf.data.TFRecordDataset(\n"
        "    files, num_parallel_reads=tf.data.AUTOTUNE)",
    ),
    Rule(
        "parallel map",
        causes.serial_map,
        "`{stage}` handles one element at a time.{why}",
        "dataset = dataset.map({function}, num_parallel_calls={calls}){pool}",
    ),
    Rule(
        "thread pool",
        causes.too_small_a_pool,
        "`{stage}` waits (a disk, a network), and TensorFlow runs no more "
        "calls of it than there are cores ({cores}).",
        "dataset = dataset.map({function}, num_parallel_calls={calls}){pool}",
    ),
    Rule(
        "cache",
        causes.no_cache,
        "All up to `{stage}` computes the same in every epoch.",
        "dataset = dataset.cache()  # after the map, before shuffle\n"
        "# cache('a_file_name') if memory is short",
    ),
    Rule(
        "unordered",
        causes.in_order,
        "`{stage}` gives its results in order, so one slow element holds up "
        "the others, although the data is shuffled anyway.",
        "options = tf.data.Options()\n"
        "options.deterministic = False\n"
        "dataset = dataset.with_options(options)",
    ),
    Rule(
        "tiny reads",
        causes.small_buffer,
        "`{stage}` reads {size} bytes at a time.",
        "dataset = tf.data.{kind}Dataset({files})  # without buffer_size",
    ),
)

PYDATASET = (
    Rule(
        "few workers",
        loader_causes.few_workers,
        "The PyDataset `{name}` loads its batches {how}.",
        "dataset.workers = {count}{more}",
    ),
    Rule(
        "too many workers",
        functools.partial(loader_causes.computing_threads, many=True),
        "{threads} threads compute on {cores} cores, but Python runs one at a "
        "time: they hold up each other. Processes compute side by side.",
        "dataset.workers = {count}\ndataset.use_multiprocessing = True",
    ),
    Rule(
        "threads that compute",
        functools.partial(loader_causes.computing_threads, many=False),
        "The {threads} workers are threads and compute, and Python lets one "
        "of them run at a time. Processes compute side by side.",
        "dataset.use_multiprocessing = True",
    ),
)
GENERATOR = (
    Rule(
        "python generator",
        lambda facts: {},
        "A Python generator runs in one thread.",
        "class Data(keras.utils.PyDataset):\n"
        "    def __len__(self): return batches\n"
        "    def __getitem__(self, i): return load(i)  # x, y of batch i\n"
        "model.fit(Data(workers=4))",
    ),
)
DATALOADER = (
    Rule(
        "num_workers",
        loader_causes.no_loader_workers,
        "The DataLoader loads its batches in the training process.",
        "loader = torch.utils.data.DataLoader(\n"
        "    loader.dataset, sampler=loader.sampler,\n"
        "    batch_size=loader.batch_size, collate_fn=loader.collate_fn,\n"
        "    drop_last=loader.drop_last, num_workers={count})",
    ),
)
GRAIN = (
    Rule(
        "grain read threads",
        loader_causes.few_read_threads,
        "Grain reads its samples in {threads} thread(s) beside training.",
        "{code}grain.ReadOptions(num_threads={wanted}))",
    ),
    Rule(
        "grain processes",
        loader_causes.no_grain_processes,
        "In Grain's threads Python computes in turn. Processes need picklable "
        'data, and your code below `if __name__ == "__main__":`.',
        "{first}dataset = dataset.mp_prefetch(\n"
        "    grain.MultiprocessingOptions(num_workers={count}))",
    ),
    Rule(
        "too many workers",
        loader_causes.many_grain_processes,
        "{processes} worker processes share {cores} cores, with the training "
        "among them.",
        "dataset = dataset.mp_prefetch(\n"
        "    grain.MultiprocessingOptions(num_workers={cores}))",
    ),
)
#: By the kind of `Facts`: other data gets no advice.
RULES = {
    "dataset": TFDATA,
    "pydataset": PYDATASET,
    "generator": GENERATOR,
    "dataloader": DATALOADER,
    "grain": GRAIN,
}


def advise(facts, wanted=lambda rule: True):
    """Return the advice of all wanted rules, the first to follow first."""
    rules = filter(wanted, RULES.get(facts.kind, ()))
    given = [rule.advice(facts) for rule in rules]
    return [advice for advice in given if advice is not None]
