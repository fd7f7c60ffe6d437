"""The gate: every launch of a tree found, checked and reported with its place."""
