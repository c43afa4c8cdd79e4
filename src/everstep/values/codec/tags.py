"""The tags of what MessagePack cannot tell apart: each is the type of an extension. Stored, so never changed."""

from __future__ import annotations

INT = 1
STR = 2
BYTEARRAY = 3
MAP = 4
TUPLE = 5
SET = 6
FROZENSET = 7
OBJECT = 8
ROWS = 9
DATETIME = 16
DATE = 17
TIME = 18
TIMEDELTA = 19
TIMEZONE = 20
ZONE = 21
UUID = 32
DECIMAL = 33
COMPLEX = 34
RANGE = 35
FRACTION = 36
PATH = 37

TREE_TAGS = frozenset((MAP, TUPLE, SET, FROZENSET, OBJECT, ROWS))
"""Tags whose content is a packed list."""
