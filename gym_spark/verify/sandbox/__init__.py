"""Sandboxes for code that a model wrote: what they hold off, and what not, stands in docs/sandbox.md."""
