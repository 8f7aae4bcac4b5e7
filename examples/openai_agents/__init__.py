"""The OpenAI Agents SDK behind chatlock, offline: double texts, and a worker that loses its claim in mid-run."""
