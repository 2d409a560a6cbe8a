"""Spark on snapshots: a data source, jobs, and a session that finds Java."""
