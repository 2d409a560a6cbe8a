"""The jobs over snapshots: on rows of our making, and on real snapshots of a real broker."""
