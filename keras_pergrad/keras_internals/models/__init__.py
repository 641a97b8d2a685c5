"""Models and layers, as Keras keeps them."""
