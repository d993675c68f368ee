"""Virtual costs: what a unit of ε costs the server once incentives are counted, ironed where it would fall."""
