"""For tests of what users build: gates, faults, planted facts, and a check that nothing was lost.

report = await trial(my_summary_provider, facts=PlantedFacts())
assert report.is_lossless
assert report.survival > 0.8
"""

from nanoloop.testing.coverage import Coverage, coverage, coverage_of, pair_violations
from nanoloop.testing.facts import Fact, PlantedFacts
from nanoloop.testing.faults import Fault, Faulty, seeded
from nanoloop.testing.faulty_store import FaultyStore
from nanoloop.testing.gate import Gate
from nanoloop.testing.handed_over import HandedOver
from nanoloop.testing.trial import Trial, trial

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
