"""A search by text or exception: which of its words the store can compare, so that only what may match is read.

What a page shows decides, since values are hidden there: a script that matches too much costs a read, no more. So a
word is given to the script only if whatever shows it has it in what is stored, too.
"""

from __future__ import annotations

import re
from collections.abc import Collection

# A list looks for these words in what it writes itself, and not in what is stored.
_OURS = (
    "true false null bytes nested too deeply shown arguments that cannot be read the result of a parent which not there"
)

_WORD = re.compile(r"[a-z]{3,}|[0-9]{3,}")


def words_of(text: str, names: Collection[str]) -> list[str]:
    """Words of a search that each job which shows the text has stored, in lower case.

    Args:
        names: of parameters: a list shows them beside values, and they are not stored.
    """
    found = dict.fromkeys(_WORD.findall(text.lower()))
    unsure = [*_OURS.split(), *(name.lower() for name in names)]
    return [word for word in found if not any(word in other for other in unsure)]
