"""The values of training samples: their part in a lower validation loss."""
