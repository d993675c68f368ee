"""Timings against other ways of computing the same, in one run on one machine. They assert nothing: tests do."""
