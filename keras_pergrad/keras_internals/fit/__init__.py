"""The running `fit`: its train function and its progress bar."""
