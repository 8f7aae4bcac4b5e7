"""Measurements: ratios against peers and the raw statements in one run, and counts."""
