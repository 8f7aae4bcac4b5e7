"""Replays when real people wrote: into an agent alone, then into the same agent with chatlock."""
