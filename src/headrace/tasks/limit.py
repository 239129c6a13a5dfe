"""A limit of an application, as an object. The scripts keep limits: see docs/design/limits.md."""

from __future__ import annotations

from headrace.model.limit_rules import LimitRule


class Limit:
    """How often, or how many at once, jobs start that share something: all workers together.

    Attributes:
        name: of the limit.
        rule: as code declares it.
    """

    __slots__ = ("name", "rule")

    def __init__(self, rule: LimitRule) -> None:
        """Use ``app.limit(...)``."""
        self.name, self.rule = rule.name, rule

    def __repr__(self) -> str:
        return f"<Limit {self.name}>"
