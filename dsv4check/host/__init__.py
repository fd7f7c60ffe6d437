"""What a machine offers a launch: GPUs, driver, packages, compiled extensions, limits, environment variables."""
