"""What people look at: plots and reports."""
