"""What surrounds a step, by plain steps: on a CPU and on a GPU alike.

    python -m benchmarks.steps.around_a_step [--model cifar10] [--rounds 5]

Measures of gradients, values of samples, influence, aggregations by a Gramian,
one gradient for each loss, and gradients of outputs with respect to inputs.
Each takes turns with the plain training of the same samples. A ratio on a GPU
that is more than 1.5 times that of the CPU shows what does not use the card.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import argparse
import tempfile

import keras
import tensorflow as tf

import keras_pergrad as kpg
from benchmarks.harness.keras_models import build_model, make_loss, targets
from benchmarks.harness.models import make_batch
from benchmarks.harness.turns import in_turns, milliseconds, show

BATCH, BATCHES = 64, 16


def ways(name):
    """Return name → a function that goes through the data once."""
    x, y = make_batch(name, BATCH * BATCHES)
    y = targets(name, y)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH).cache()
    probe = x[:BATCH], y[:BATCH]

    def compiled(mode="batch", net=None, loss=None):
        net = net or build_model(name, kpg.PerGradModel)
        optimizer = keras.optimizers.SGD(1e-6)
        net.compile(optimizer, loss or make_loss(name), gradient_mode=mode)
        return net

    def training(net, data=data, callbacks=()):
        return lambda: net.fit(data, verbose=0, callbacks=[*callbacks])

    logs = tempfile.mkdtemp()
    measured = kpg.callbacks.GradientVariance(probe=probe, log_dir=logs)
    values = kpg.callbacks.SampleValues(probe)
    trained, watched = compiled(), compiled("vectorized")

    def valued():  # of shuffled arrays, since samples are told by their rows
        watched.fit(x, y, batch_size=BATCH, verbose=0, callbacks=[values])

    influence = kpg.influence.Influence(trained, x, y)
    steps = {
        "plain": training(compiled()),
        "GradientVariance": training(compiled(), callbacks=[measured]),
        "SampleValues": valued,
        "UPGrad": training(compiled(kpg.Vectorized("upgrad"))),
        "Influence.scores": lambda: influence.scores(*probe),
        "input_gradients": lambda: kpg.input_gradients(trained, x, y),
    }
    if len(x.shape) == 2 and x.dtype.kind == "i":
        del steps["input_gradients"]  # of ids there are none
    body = build_model(name)
    heads = [keras.layers.Dense(1, name=n)(body.output) for n in "ab"]
    two = kpg.PerGradModel(body.input, heads)
    pairs = data.map(lambda x, y: (x, (tf.ones([tf.shape(x)[0], 1]),) * 2))
    by_task = compiled(kpg.ByTask(kpg.aggregations.UPGrad()), two, "mse")
    steps["ByTask"] = training(by_task, pairs)
    return steps


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="cifar10")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    devices = [d.name for d in tf.config.list_logical_devices()]
    print(f"{options.model}, {BATCH * BATCHES} samples, on {devices[-1]}")
    steps = ways(options.model)
    for step in steps.values():
        step()  # compiles
    times = in_turns(
        steps, options.rounds, lambda name, step: milliseconds(step)
    )
    show(times, "plain")


if __name__ == "__main__":
    main()
