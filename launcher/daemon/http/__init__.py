"""What the daemon answers over its socket, and the client that asks."""
