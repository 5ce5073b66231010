"""Reports about jobs: a table of their ops, and where everything is stored."""
