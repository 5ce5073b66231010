"""First values of variables, and penalties on their gradients: plain values that a declaration carries."""
