"""Tests over the source text itself: its layout, its imports, its documents."""
