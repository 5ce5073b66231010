"""The same programs with this library's public API."""
