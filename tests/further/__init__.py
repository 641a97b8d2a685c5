"""Further models: of keras-hub, of recommenders, of keras.io's examples."""
