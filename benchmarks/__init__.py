"""Timings against peers; nothing here checks correctness."""
