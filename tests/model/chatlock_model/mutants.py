"""Every weakened rule by its name, and the configuration in which the explorer finds it."""

from __future__ import annotations

from .config import Config
from .core_mutants import CORE
from .feature_mutants import FEATURES

MUTANTS = {**CORE, **FEATURES}


def mutant_config(name: str) -> Config:
    return Config("mutant:" + name, **MUTANTS[name].where).with_mut(name)
