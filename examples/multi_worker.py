"""Trains on several processes as on several machines, with one command.

Starts a cluster on this machine, lets it clip every sample's gradient, and
compares the weights of all workers with each other and with one process.

    python examples/multi_worker.py --workers 2

On real machines start the same script on each, with TF_CONFIG set there and
a folder that all of them see.
"""

import argparse
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def train(folder):
    """What each worker runs; also alone, without TF_CONFIG."""
    import contextlib

    import tensorflow as tf

    # First of all: nothing of TensorFlow may have run before.
    index, scope = 0, contextlib.nullcontext()
    if "TF_CONFIG" in os.environ:
        index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
        scope = tf.distribute.MultiWorkerMirroredStrategy().scope()
    import keras

    import keras_pergrad as kpg

    # The same seed on all workers: they must agree how data are shuffled.
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).normal(size=(1000, 20)).astype("float32")
    y = (x[:, 0] * x[:, 1] > 0).astype("int32")
    with scope:
        inputs = keras.Input((20,))
        hidden = keras.layers.Dense(32, activation="relu")(inputs)
        outputs = keras.layers.Dense(2, activation="softmax")(hidden)
        model = kpg.PerGradModel(inputs, outputs)
        model.compile(
            keras.optimizers.Adam(0.01),
            "sparse_categorical_crossentropy",
            metrics=["accuracy"],
            gradient_mode=kpg.Vectorized(kpg.ClippedMean(1.0)),
        )
    # One worker writes, all read: none can be an epoch ahead of another.
    only_read = {"save_freq": 10**9, "delete_checkpoint": False}
    backup = keras.callbacks.BackupAndRestore(
        folder / "backup", **(only_read if index else {})
    )
    # 1000 samples in batches of 96: the last batch has 40.
    history = model.fit(
        x, y, batch_size=96, epochs=5, verbose=0, callbacks=[backup]
    )
    loss, accuracy = (history.history[k][-1] for k in ("loss", "accuracy"))
    print(f"loss {loss:.4f}, accuracy {accuracy:.3f}", flush=True)
    return np.concatenate([w.ravel() for w in model.get_weights()])


def start(folder, name, config=None):
    """This script again, as one worker or alone."""
    environment = dict(os.environ)
    environment.pop("TF_CONFIG", None)
    if config is not None:
        environment["TF_CONFIG"] = json.dumps(config)
    folder = folder / ("alone" if config is None else "cluster")
    command = [sys.executable, __file__, "--folder", folder, "--save", name]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, text=True
    )


def free_ports(count):
    """Ports that nobody listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for each in sockets:
        each.close()
    return ports


def run_cluster(count, folder):
    """Runs all workers, then one process alone; returns all weights."""
    cluster = {"worker": [f"127.0.0.1:{p}" for p in free_ports(count)]}
    processes = {
        f"worker {i}": start(
            folder,
            f"worker {i}",
            {"cluster": cluster, "task": {"type": "worker", "index": i}},
        )
        for i in range(count)
    }
    try:
        outputs = {n: p.communicate()[0] for n, p in processes.items()}
        processes["alone"] = start(folder, "alone")
        outputs["alone"] = processes["alone"].communicate()[0]
    finally:
        for process in processes.values():
            process.kill()
    for name, process in processes.items():
        if process.returncode:
            sys.exit(f"{name} failed")
        print(f"{name:<9} {outputs[name].strip()}")
    return {
        name: np.load(next(folder.glob(f"*/{name}.npy"))) for name in processes
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=pathlib.Path)
    parser.add_argument("--save", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.save or "TF_CONFIG" in os.environ:
        arguments.folder.mkdir(parents=True, exist_ok=True)
        weights = train(arguments.folder)
        if arguments.save:
            np.save(arguments.folder / f"{arguments.save}.npy", weights)
        return
    with tempfile.TemporaryDirectory() as folder:
        weights = run_cluster(arguments.workers, pathlib.Path(folder))
    alone = weights.pop("alone")
    first, *others = weights.values()
    agree = all(np.array_equal(first, other) for other in others)
    print(f"the workers' weights agree: {agree}")
    difference = np.abs(first - alone).max()
    print(f"largest difference from one process: {difference:.1e}")


if __name__ == "__main__":
    main()
