"""From the log of a launch that failed to its cause: reading, the first real error, the deployment, the rules."""
