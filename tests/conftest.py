"""Every test run has a compile cache of its own."""

from __future__ import annotations

import gc
import os
import tempfile

os.environ.setdefault("TW_CACHE_DIR", tempfile.mkdtemp(prefix="tilewright-test-"))
# Thousands of programs are compiled in one process, beside modules of other frameworks whose objects never go away:
# looking for garbage among them after every 700 new objects is a tenth of the time.
gc.set_threshold(50_000, 20, 100)
