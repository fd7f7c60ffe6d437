"""Tools of the maintainers; run them as files (``python scripts/NAME.py``)."""
