"""By which word is a member of an enum stored? By its name, which stays; the sentence that people read may change.

>>> class Fruit(Coded):
...     RED_APPLE = "an apple, and it is red"
>>> Fruit.RED_APPLE.code, Fruit.of_code("red-apple") is Fruit.RED_APPLE, Fruit.of_code("pear")
('red-apple', True, None)
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self


class Coded(Enum):
    """Its values are read by people, its codes by programs: tags, cursors and logs hold codes."""

    @property
    def code(self) -> str:
        """The name in lower case, with hyphens."""
        return self.name.lower().replace("_", "-")

    @classmethod
    def of_code(cls, code: str) -> Self | None:
        """The member of a code; None for what is none, as another version's may be."""
        return next((member for member in cls if member.code == code), None)
