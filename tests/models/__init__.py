"""What tests share to make, compile and train small models."""
