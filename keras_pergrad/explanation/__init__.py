"""The table of how each layer's gradients will be found."""
