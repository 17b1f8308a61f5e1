"""The dialects of all phases."""

from tilewright.dialects.imports import import_xdsl

import_xdsl()
