"""Spark on snapshots of a real broker, in a real session."""
