"""Real arrivals on PostgreSQL, Valkey, a poller and two RQ workers, of which one is killed and one stopped."""
