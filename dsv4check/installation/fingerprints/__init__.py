"""The questions, by area. Each module lists its own in ``FINGERPRINTS``."""
