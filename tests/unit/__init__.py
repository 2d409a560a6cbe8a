"""One promise a test: a value in, a value out. No sockets, no processes, no sleep."""
