"""What `asterism spark` runs."""
