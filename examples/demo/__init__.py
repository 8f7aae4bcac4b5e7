"""Replays when real people wrote, first into an agent without chatlock and then into the same agent with it."""
