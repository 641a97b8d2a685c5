"""What measures, remembers and draws, for all benchmarks."""
