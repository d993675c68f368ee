"""Many runs at once: the combinations that a specification asks for, and a store of their results that can go on.

The paper's experiments (`reproduction/`) stand on it.
"""
