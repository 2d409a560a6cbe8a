"""Faults put in on purpose: killed processes, damaged and torn files, disks that fail."""
