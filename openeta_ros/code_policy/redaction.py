# SPDX-License-Identifier: Apache-2.0
"""Keys stay out of records, logs and errors, also when a server sends them back."""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

MARK = '[redacted]'

# What looks like a key even if it is none of ours: the providers' own form (letters, digits and dashes, with
# a digit in it), and whatever follows the word Bearer.
_LOOKS_LIKE_A_KEY = re.compile(
    r'\bsk-(?=[A-Za-z_-]*[0-9])[A-Za-z0-9_-]{16,}|(?<=[Bb]earer )[A-Za-z0-9._~+/=-]{20,}'
)
# Shorter secrets are words; taking them out would damage text, and they are no secrets.
_SHORTEST = 6


class Redactor:
    """Takes secrets out of text and of JSON-like values.

    Args:
        secrets: the keys in use; those of fewer than 6 characters are ignored.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        kept = {secret for secret in secrets if len(secret) >= _SHORTEST}
        kept |= {quote(secret, safe='') for secret in kept}
        # The longest first: one may be the beginning of another.
        self._secrets = sorted(kept, key=len, reverse=True)

    def text(self, text: str) -> str:
        """Return the text with `[redacted]` in place of every key."""
        for secret in self._secrets:
            text = text.replace(secret, MARK)
        return _LOOKS_LIKE_A_KEY.sub(MARK, text)

    def value(self, value: Any) -> Any:
        """Return mappings, sequences and texts with every key taken out; other values as they are."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.value(key): self.value(item) for key, item in value.items()}
        if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
            return [self.value(item) for item in value]
        return value

    def guard_logs(self, packages: Sequence[str]) -> None:
        """Take the keys out of what the loggers of these packages say from now on."""
        for name in list(logging.root.manager.loggerDict):
            if name.split('.')[0] in packages:
                logger = logging.getLogger(name)
                if not any(isinstance(one, _Filter) and one.redactor is self for one in logger.filters):
                    logger.addFilter(_Filter(self))


class _Filter(logging.Filter):
    def __init__(self, redactor: Redactor) -> None:
        super().__init__()
        self.redactor = redactor

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = self.redactor.text(record.getMessage()), ()
        if record.exc_info:
            told = ''.join(traceback.format_exception(*record.exc_info))
            record.exc_info, record.exc_text = None, self.redactor.text(told.rstrip())
        return True
