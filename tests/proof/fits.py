"""A private training of one step, for what it refuses."""

from tests.models.making import compiled
from tests.privacy.tiny import private


def fit_privately(model, x, y, loss="mse", method="vectorized"):
    """Fit all samples, each a user's only one, in one batch."""
    n = len(y)
    training = private(samples=n, batch_size=n, epochs=1, method=method)
    compiled(model, training.gradient_mode, loss)
    batches = training.batches(x, y)
    model.fit(batches, epochs=1, callbacks=[training.callback], verbose=0)
