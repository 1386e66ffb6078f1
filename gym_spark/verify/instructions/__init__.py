"""The instructions of IFEval: each a function from an answer and its arguments to whether it was followed."""
