"""The paper's evaluation, run from specifications and stored: TOML spec → runs, each with a key → results.

`python -m reproduction --help` lists the commands. They work in a checkout of jsam; no wheel contains them.
"""
