"""Task to trajectory: what makes a model an agent. Runs on workers; no pyspark."""
