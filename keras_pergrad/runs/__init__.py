"""Run records on disk, and their comparison."""
