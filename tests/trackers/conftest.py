"""Trackers that reach no network."""

import os

# Read when the libraries are first imported.
os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
os.environ.setdefault("WANDB_SILENT", "true")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
