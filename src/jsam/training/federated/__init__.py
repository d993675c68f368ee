"""What a campaign needs of torch: models by name, and gradients clipped record by record."""
