"""What survives: the keys and records of a store, and the one RocksDB beneath them."""
