"""Controlled interleavings on both databases, and the controls that prove them able to fail."""
