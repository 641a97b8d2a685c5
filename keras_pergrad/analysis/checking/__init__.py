"""The check that every way to a gradient gives the same one."""
