"""The tests. A folder says what its tests may touch: see docs/testing.md."""
