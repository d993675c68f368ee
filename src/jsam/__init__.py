"""Buy privacy truthfully, then train under exactly those contracts."""
