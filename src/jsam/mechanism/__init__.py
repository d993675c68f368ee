"""The economics: from reports to contracts. numpy and scipy only."""
