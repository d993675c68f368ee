"""The paper's evaluation, run from specifications and stored: TOML spec → runs, each with a key → results.

`python -m reproduction` needs numpy, scipy and torch only; `jsam reproduce` is the same with more comfort.
"""
