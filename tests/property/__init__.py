"""Promises over histories and inputs that nobody chose: hypothesis and its state machines."""
