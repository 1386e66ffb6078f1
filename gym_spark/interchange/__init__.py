"""Other systems' files, in and out."""
