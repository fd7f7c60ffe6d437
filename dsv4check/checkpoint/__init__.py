"""What a checkpoint holds: reading it, finding it, judging it, and writing small ones for tests."""
