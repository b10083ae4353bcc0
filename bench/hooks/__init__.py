"""What hooks cost."""
