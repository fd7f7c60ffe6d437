"""Learning what a vLLM release does: one module per section of rules/releases/<version>.yaml."""
