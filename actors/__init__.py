"""Who decides: the topic actor and what it owns. Pure state machines; only host.py does I/O."""
