"""What a training step costs, and what the proof says of models."""
