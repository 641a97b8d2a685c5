"""Advice on ops that have no Metal kernel."""

_HINTS = {
    "Einsum": "Dense layers and matmul run on Metal, einsum does not",
    "Erfc": "keras.activations.gelu(approximate=True) avoids it",
    "Elu": "relu and leaky_relu have kernels",
    "EluGrad": "relu and leaky_relu have kernels",
    "Selu": "relu and leaky_relu have kernels",
    "SeluGrad": "relu and leaky_relu have kernels",
    "Softplus": "relu and leaky_relu have kernels",
    "SoftplusGrad": "relu and leaky_relu have kernels",
    "Softsign": "tanh has a kernel",
    "SoftsignGrad": "tanh has a kernel",
    "Conv3D": "no replacement: 3-D convolutions train on the CPU",
    "Conv3DBackpropFilterV2": "no replacement",
    "Conv3DBackpropInputV2": "no replacement",
    "ResizeNearestNeighbor": "bilinear resizing has a forward kernel",
    "FloorMod": "do it in the data pipeline",
    "Where": "a mask and a multiplication run on Metal",
    "Unique": "do it in the data pipeline",
}


def for_op(op):
    """Return a hint, or `""`."""
    return _HINTS.get(op, "")
