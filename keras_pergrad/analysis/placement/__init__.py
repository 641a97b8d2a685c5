"""Which device runs what: found, measured, compared and predicted."""
