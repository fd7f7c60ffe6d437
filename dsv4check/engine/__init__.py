"""Rules: loading, matching, findings and the search for fixes."""
