"""Programs that use chatlock as an application would."""
