"""What vLLM does with the files and tensors of a checkpoint."""
