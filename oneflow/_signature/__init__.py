"""What a job's signature says: its inputs, its parameters as they may be annotated, and what its calls return."""
