"""Reading ``vllm serve`` flags the way the parser of a given release reads them."""
