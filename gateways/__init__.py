"""The doors other than ZeroMQ: each translates a foreign protocol and keeps no state."""
