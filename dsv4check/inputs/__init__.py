"""From the outside world to frozen records: command lines, files, models, GPUs, versions."""
