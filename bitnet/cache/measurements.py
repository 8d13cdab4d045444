"""Measurements on this machine, reused while their conditions hold.

``<cache>/measurements/<what>-<hash of the conditions>.json`` holds the conditions and the result. A
file that is unreadable or has other conditions is ignored; if the cache is not writable, the
measurement is merely repeated.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from typing import TYPE_CHECKING, Any

from bitnet.base import settings
from bitnet.store.tag import keep_in_cache

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

logger = logging.getLogger(__name__)


def measurement_path(what: str, conditions: Mapping[str, Any]) -> Path:
    """Path of the result of *what* under *conditions*, JSON values."""
    text = json.dumps(conditions, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return settings.cache_dir() / "measurements" / f"{what}-{digest}.json"


def read_measurement(what: str, conditions: Mapping[str, Any]) -> dict[str, float] | None:
    """Valid numbers measured under *conditions*, by name; ``None`` if there are none."""
    path = measurement_path(what, conditions)
    try:
        content = json.loads(path.read_bytes(), parse_int=float)  # no huge integers
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        logger.debug("%s cannot be used, measured again: %s", path, error)
        return None
    if isinstance(content, dict) and content.get("conditions") == conditions:
        found = content.get("found")
        if isinstance(found, dict) and all(
            isinstance(n, float) and math.isfinite(n) for n in found.values()
        ):
            return found
    logger.debug("%s is of something else, measured again", path)
    return None


def write_measurement(what: str, conditions: Mapping[str, Any], found: Mapping[str, float]) -> None:
    """Store *found*; without space or permission nothing happens."""
    text = json.dumps({"conditions": conditions, "found": found}, indent=1) + "\n"
    if problem := keep_in_cache(measurement_path(what, conditions), text.encode()):
        logger.debug("measurement of %s not kept: %s", what, problem)
