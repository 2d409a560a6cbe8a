"""The simulator: the broker's parts in one process from one seed, and an auditor beside them."""
