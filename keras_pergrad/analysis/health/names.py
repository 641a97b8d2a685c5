"""The names of all instruments."""

#: Each with what it puts into the logs.
INSTRUMENTS = {
    "norm_test": "gradient_norm_test",
    "inner_product_test": "gradient_inner_product_test",
    "orthogonality_test": "gradient_orthogonality_test",
    "cabs": "gradient_cabs",
    "noise_scale": "gradient_noise_scale",
    "snr_by_weight": "gradient_snr_by_weight",
    "early_stopping": "gradient_early_stopping",
    "update_ratio": "gradient_update_ratio",
    "distance": "gradient_distance",
    "alpha": "gradient_alpha",
    "dead_units": "gradient_dead_units",
    "layers": "gradient_vanishing_layers",
}


def chosen(instruments):
    """Return the names of the instruments that an argument asks for."""
    if instruments is None:
        return ()
    if isinstance(instruments, str) and instruments == "all":
        return tuple(INSTRUMENTS)
    names = instruments
    if isinstance(names, str) or not isinstance(names, (tuple, list)):
        names = [names]
    if not set(names) <= set(INSTRUMENTS):
        raise ValueError(
            "`instruments` expected None, 'all' or a tuple of names among "
            f"{', '.join(map(repr, INSTRUMENTS))}. Received: instruments="
            f"{instruments!r}"
        )
    return tuple(name for name in INSTRUMENTS if name in names)
