"""The check that every way to compute a gradient gives the same one."""
