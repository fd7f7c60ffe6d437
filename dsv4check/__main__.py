"""``python -m dsv4check``."""

from dsv4check.cli.main import main

main()
