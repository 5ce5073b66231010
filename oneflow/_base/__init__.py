"""Modules that depend on nothing of ours: dtypes, placement strings, the user's lines, JAX, extras, the native part."""
