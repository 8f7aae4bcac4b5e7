"""Waking: lossy hints that a thread may be due, and the one shared look for all of a process's waiters."""
