"""Side-by-side measurements of keras_pergrad and its peers."""
