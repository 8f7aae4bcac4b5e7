"""A deterministic simulation of the real core: one seed decides who goes on, what breaks, and what the clocks say."""
