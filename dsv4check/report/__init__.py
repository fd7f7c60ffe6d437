"""The report and its renderers, one module an output format."""
