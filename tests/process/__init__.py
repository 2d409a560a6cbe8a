"""Tests of real processes on loopback, in temporary folders."""
