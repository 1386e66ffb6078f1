"""HTTP to the models: requests, replies, retries, and a server of our own. No pyspark; usable alone."""
