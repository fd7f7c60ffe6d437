"""A tiny real cache: allocated and reshaped by vLLM's own code, filled with real bytes, read by the kernel."""
