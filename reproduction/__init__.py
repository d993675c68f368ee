"""The paper's evaluation: specifications in TOML say what to run, and every run is stored under a key of its own.

`python -m reproduction --help` lists the commands. They work in a checkout of jsam; no wheel contains them.

`spec`, `store`, `sweeps` and the grouping of runs in `tabulate` would serve any sweep. They stay here as long as they
are tied to the paper's settings (`RunConfig`, chosen values): a command for a user's own sweeps is to build on them.
"""
