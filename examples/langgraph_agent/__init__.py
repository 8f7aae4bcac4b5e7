"""LangGraph behind chatlock, offline: double texts, a client that goes away, and a run that its successor resumes."""
