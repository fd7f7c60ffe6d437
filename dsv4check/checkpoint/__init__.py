"""Checkpoints: what is in one, and what a release makes of its tensors."""
