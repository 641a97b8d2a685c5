"""Models that tests share: small ones made in a line, and the catalogue."""
