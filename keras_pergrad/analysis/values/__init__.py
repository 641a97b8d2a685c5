"""What each training sample has done to the loss of validation data."""
