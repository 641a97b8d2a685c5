"""What callbacks and their instruments cost."""
