"""Stage 2: tasks become rollouts."""
