"""Reports on models, data and machines; each package by itself."""
