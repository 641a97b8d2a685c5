"""Code and texts that the rules about `tf.data` share."""

from keras_pergrad.analysis.pipelines.pipeline_facts import cores


def parallel_gain(facts, share, workers=None):
    """Return what several workers save of a part of a batch's time, in ms."""
    workers = workers or max(cores(), 2)
    return facts.pipeline_ms * share * (1 - 1 / workers)


def written_as(stage, default="function"):
    """Return the name of a stage's function where it is one to write."""
    name = stage.function or ""
    return name if name.isidentifier() else default


def thread_pool_code(threads):
    """Return code that gives a dataset so many threads of its own."""
    return (
        "\noptions = tf.data.Options()\n"
        f"options.threading.private_threadpool_size = {threads}\n"
        "dataset = dataset.with_options(options)"
    )
