"""A private training of one step, for what it refuses."""

import keras

import keras_pergrad as kpg


def fit_privately(model, x, y, loss="mse", method="vectorized"):
    """Fit all samples, each a user's only one, in one batch."""
    private = kpg.PrivateTraining(
        noise_multiplier=1.0,
        delta=1e-2,
        samples=len(y),
        batch_size=len(y),
        user_ids="unique",
        seed=1,
        epochs=1,
        method=method,
    )
    optimizer = keras.optimizers.SGD(0.1)
    model.compile(optimizer, loss, gradient_mode=private.gradient_mode)
    model.fit(
        private.batches(x, y), epochs=1, callbacks=[private.callback], verbose=0
    )
