"""Timings against other ways of computing the same, side by side in one run. Correctness is tested elsewhere."""
