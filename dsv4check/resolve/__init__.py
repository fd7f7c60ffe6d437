"""What vLLM will decide: one module a decision, pure functions of deployment and release facts."""
