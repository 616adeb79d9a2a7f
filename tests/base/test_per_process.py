"""Values that every process makes for itself."""

from __future__ import annotations

import copy
import os
import pickle

from fastload._base.per_process import PerProcess


def test_a_forked_child_finds_it_empty_and_leaves_its_parents_value_alone() -> None:
    place = PerProcess[str]()
    assert place.get() is None
    assert place.put("first") == "first"
    place.put("the parent's")
    child = os.fork()
    if not child:
        code = 1
        try:
            if place.get() is None and place.put("the child's") == place.get() == "the child's":
                code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert place.get() == "the parent's"


def test_a_copy_for_another_process_is_empty() -> None:
    place = PerProcess[object]()
    place.put(os)  # a module cannot be pickled
    for other in (pickle.loads(pickle.dumps(place)), copy.deepcopy(place)):
        assert other.get() is None
    assert place.get() is os
