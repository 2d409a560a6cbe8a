"""The Pub/Sub door: Google's client libraries publish to the broker and subscribe to it."""
