"""Migrations: what leads a store from one layout to another, forwards and back.

Owns the steps and the way they are applied. Nothing else may scan a keyspace, and nothing here runs by itself: a person
decides when programs stand still (``headrace migrate``). ``step`` holds facts and decisions, ``migrator`` applies them
over its connection and copies a store to another server, and each other module is one step.
"""

from __future__ import annotations

from headrace.migrations import indexes
from headrace.migrations.migrator import Migrator, Moved, Mover
from headrace.migrations.step import Leg, Piece, Progress, Step, StoreState, in_order, plan

# A new step goes here, and its version into keys.SCHEMA; into keys.OLDEST too where it is needed.
STEPS = in_order([indexes.STEP])

__all__ = ["STEPS", "Leg", "Migrator", "Moved", "Mover", "Piece", "Progress", "Step", "StoreState", "in_order", "plan"]
