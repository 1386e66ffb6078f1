"""Stage 1: a benchmark folder and its source become one version of keyed, sharded tasks."""
