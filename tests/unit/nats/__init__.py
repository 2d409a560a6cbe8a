"""The pure parts of the NATS door."""
