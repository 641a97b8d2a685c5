"""The time that training waits for its data."""
