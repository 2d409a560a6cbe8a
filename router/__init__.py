"""Who gets it: subject globs to receivers, topics to stores to workers. Pure but for the hosts."""
