"""The Node client."""
