"""Chaos with real processes, judged from what each of them noted: `python -m soak --seconds 60 --db postgres`."""
