"""One module for each section of a release's facts, with one function ``learn``."""
