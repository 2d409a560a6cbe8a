"""The HTTP door: the work queue over HTTP."""
