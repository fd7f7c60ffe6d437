"""Launches of vLLM inside files: shell scripts, container manifests, units, configurations, Python code."""
