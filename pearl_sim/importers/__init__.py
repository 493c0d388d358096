"""What other tools recorded, read into traces: one file a format."""
