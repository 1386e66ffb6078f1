"""Stage 4: stored rows become numbers and views, as pure DataFrame functions."""
