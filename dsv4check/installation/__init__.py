"""A vLLM tree read as text: which build it is and what its own code does; nothing of it is imported."""
