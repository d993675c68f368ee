"""A campaign over Flower: its server app, its client app, and its messages; `launch` starts the processes."""
