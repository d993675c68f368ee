"""The protocol between the server and its clients, without a transport."""
