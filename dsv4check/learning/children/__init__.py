"""Scripts that run inside the simulation, with a release's vLLM: ``main(words)`` of each is its answer."""
