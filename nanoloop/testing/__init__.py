"""Test helpers for users' own code: gates, faults, planted facts, and a check for lost messages.

report = await trial(my_summary_provider, facts=PlantedFacts())
assert report.is_lossless
assert report.survival > 0.8
"""

from nanoloop.testing.faults import Fault, Faulty, FaultyStore, Gate, seeded
from nanoloop.testing.trial import (
    Coverage,
    Fact,
    HandedOver,
    PlantedFacts,
    Trial,
    coverage,
    coverage_of,
    pair_violations,
    trial,
)

__all__ = [
    "Coverage",
    "Fact",
    "Fault",
    "Faulty",
    "FaultyStore",
    "Gate",
    "HandedOver",
    "PlantedFacts",
    "Trial",
    "coverage",
    "coverage_of",
    "pair_violations",
    "seeded",
    "trial",
]
