"""The running `fit`: its callbacks, its train function, its end."""
