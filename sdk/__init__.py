"""What programs use: the client protocol and the clients built on it. Needs no RocksDB."""
