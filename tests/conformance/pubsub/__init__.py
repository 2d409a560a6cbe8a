"""Google Pub/Sub's clients against our door, and against Google's emulator."""
