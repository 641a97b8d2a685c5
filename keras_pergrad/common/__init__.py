"""Parts that all packages share: arguments, batches, callbacks, errors."""
