"""The NATS door."""
