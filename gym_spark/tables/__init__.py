"""The lake: its schemas, keys and access."""
