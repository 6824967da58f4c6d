"""Garbage is looked for seldom, and found all the same."""

import subprocess
import sys

LITTER = """
import gc, weakref
from nanoloop.cli.run import GARBAGE_THRESHOLDS, collect_garbage_seldom

class Node:
    pass

collect_garbage_seldom()
kept = gc.get_freeze_count()
seen = []
gc.callbacks.append(lambda when, about: seen.append(about["generation"]))
node = Node()
node.itself = node
gone = weakref.ref(node)
del node
rest = [[number] for number in range(GARBAGE_THRESHOLDS[0] - 100)]
print(kept > 1000, len(seen), gone() is None)
rest += [[number] for number in range(GARBAGE_THRESHOLDS[0])]
print(len(seen) > 0, gone() is None)
"""


def test_garbage_is_found_after_ten_thousand_new_objects_and_what_was_loaded_is_left_alone():
    done = subprocess.run(
        [sys.executable, "-c", LITTER], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["True", "0", "False", "True", "True"]
