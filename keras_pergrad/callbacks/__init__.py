"""Callbacks that watch training; they know no mode and no rule."""
