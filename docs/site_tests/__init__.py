"""Tests of the built site; `make docs` runs them."""
