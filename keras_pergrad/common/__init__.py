"""Parts that all packages share: arguments, tables, errors, devices."""
