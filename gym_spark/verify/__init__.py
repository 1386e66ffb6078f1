"""Stage 3: stored rollouts become verdicts."""
