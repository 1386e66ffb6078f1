"""Repeatable LLM and agent evaluations as a batch data-processing system on Apache Spark."""
