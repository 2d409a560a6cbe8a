"""The NATS door: the client protocol of nats-server on one topic of the broker."""
