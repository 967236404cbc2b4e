"""Task sets and their splits."""
