"""The parts of the Pub/Sub door, each by itself."""
