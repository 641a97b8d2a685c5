from keras_pergrad.callbacks.device_placement import DevicePlacement

__all__ = ["DevicePlacement"]
