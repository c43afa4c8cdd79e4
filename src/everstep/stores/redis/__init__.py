"""Redis and Valkey, single or cluster."""
