"""What jobs tell about themselves: a table of their ops, and where everything lies."""
