"""User and password that change while a program runs: asked for anew by each connection.

Owns where they come from: the settings ``credentials`` and ``password_file``. Nothing here connects.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

from redis import exceptions as driver

from headrace.clock import monotonic
from headrace.errors import SettingsError
from headrace.settings import Settings, environment_name

# Share of the time that credentials are valid for after which a connection is replaced.
_USED = 0.8


class Login(NamedTuple):
    """What one connection says of itself.

    Attributes:
        options: keyword arguments of redis-py's connection.
        end: when a new connection must take the place of this one (monotonic seconds); infinite: never.
    """

    options: dict[str, str]
    end: float


class Credentials:
    """Where each connection gets its user and its password.

    Attributes:
        source: its name, for messages.
    """

    def __init__(self, source: str, ask: Callable[[], Any]) -> None:
        self.source = source
        self._ask = ask

    @classmethod
    def of(cls, settings: Settings) -> Self | None:
        """Those that the settings name; None: the URL has them.

        Raises:
            SettingsError: there is no such function.
        """
        if (file := settings.password_file) is not None:
            return cls(f"{environment_name('password_file')}={file}", lambda: Path(file).read_text().rstrip("\r\n"))
        if (given := settings.credentials) is None:
            return None
        if not isinstance(given, str):
            return cls(type(given).__name__, getattr(given, "get_credentials", given))
        module, _, name = given.partition(":")
        try:
            found: Any = getattr(import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise SettingsError(f"credentials={given!r} cannot be used: {error}") from error
        return cls(given, getattr(found, "get_credentials", found))

    def login(self) -> Login:
        """The user and the password for a new connection. May block.

        Raises:
            redis.exceptions.ConnectionError: there are none now; the next attempt may have them.
        """
        try:
            given = self._ask()
        except Exception as error:
            raise driver.ConnectionError(f"no credentials came from {self.source}: {error}") from error
        parts: tuple[Any, ...] = (given,) if isinstance(given, str) else cast("tuple[Any, ...]", given)
        match parts:
            case (str(password),):
                return Login({"password": password}, math.inf)
            case (str(user), str(password)):
                return Login({"username": user, "password": password}, math.inf)
            case (str(user), str(password), int() | float() as seconds):
                return Login({"username": user, "password": password}, monotonic() + _USED * seconds)
            case _:
                raise SettingsError(
                    f"{self.source} must give a password, (user, password) or (user, password, seconds), "
                    f"not a {type(given).__name__}"
                )
