"""NeMo Gym's rollout files, read as they are: result rows, input rows and failure sidecar rows."""
