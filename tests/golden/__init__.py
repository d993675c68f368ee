"""Results that must not change unless somebody means them to: `python -m tests.golden` compares, `--store` rewrites."""
