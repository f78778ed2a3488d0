"""Settings that all tests share."""

from __future__ import annotations

import os

from hypothesis import settings

# A loaded machine is no reason to fail, and a read-only checkout holds no database of examples; pytest's own timeout stops
# what hangs. Where a change is judged, the examples are the same in every run; elsewhere they are new each time.
settings.register_profile("house", deadline=None, database=None, derandomize="CI" in os.environ)
settings.load_profile("house")
