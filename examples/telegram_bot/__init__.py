"""A Telegram bot behind chatlock, offline: double texts, an edit, and an update that comes twice."""
