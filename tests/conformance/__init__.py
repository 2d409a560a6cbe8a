"""Foreign protocols, sentence by sentence, against the real doors with real clients."""
