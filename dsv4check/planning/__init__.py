"""The smallest deployment that serves a context and a concurrency, found by checking candidates."""
