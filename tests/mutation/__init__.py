"""Planted bugs: one against each main promise, each of which the tests must catch."""
