"""What each vLLM release does: facts per release, flag tables, and the timeline of versions."""
