"""Whether every way to a gradient gives the same one."""
