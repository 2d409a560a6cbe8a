"""The toy door: a line in is a message out."""
