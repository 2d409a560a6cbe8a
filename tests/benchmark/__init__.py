"""What it costs: each file runs alone and writes JSON. Nothing here asserts on time."""
