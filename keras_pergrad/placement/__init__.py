"""The placement of ops on devices: found, measured, compared and predicted."""
