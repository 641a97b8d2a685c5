"""The running `fit`: its train function and the end of its epochs."""
