"""A Slack bot behind chatlock, offline: double texts, and a message that Slack delivers three times."""
