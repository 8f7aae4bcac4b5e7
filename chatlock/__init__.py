"""One turn per conversation thread."""
