"""Private federated training under a contract: data, models, clipping and the loop."""
