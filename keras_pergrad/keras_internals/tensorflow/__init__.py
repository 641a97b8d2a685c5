"""TensorFlow's settings, devices and compilers."""
