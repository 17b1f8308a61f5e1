"""Every test run has a compile cache of its own."""

from __future__ import annotations

import os
import tempfile

os.environ.setdefault("TW_CACHE_DIR", tempfile.mkdtemp(prefix="tilewright-test-"))
