"""Processes of a federation on this machine, and the command that turns into a SuperNode."""
