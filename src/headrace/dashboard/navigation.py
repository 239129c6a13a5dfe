"""The pages that every page leads to, in order, each with an icon drawn in a square of 16."""

from __future__ import annotations

import msgspec


class NavigationEntry(msgspec.Struct, frozen=True):
    """A page of the navigation: its path, its word, the key after ``g`` that opens it, and its icon as an SVG path."""

    path: str
    word: str
    key: str
    icon: str


NAVIGATION = (
    NavigationEntry("/", "Overview", "o", "M2 9.5 8 3l6 6.5M4 8v5.5h8V8"),
    NavigationEntry("/jobs", "Jobs", "j", "M2.5 4h11M2.5 8h11M2.5 12h7"),
    NavigationEntry("/causes", "Causes", "c", "M8 2.5 14 13H2zM8 6.5v3M8 11.2v.1"),
    NavigationEntry("/queues", "Queues", "q", "M2 5h4v6H2zM8 5h2.5v6H8zM12.5 5h1.5v6h-1.5z"),
    NavigationEntry("/tasks", "Tasks", "t", "M3 3.5h10v9H3zM5.5 6.5 7.5 8l-2 1.5M8.5 10h2.5"),
    NavigationEntry("/workflows", "Workflows", "f", "M2 6h4v4H2zM10 2.5h4v4h-4zM10 9.5h4v4h-4zM6 8h2V4.5h2M8 8v3.5h2"),
    NavigationEntry("/schedules", "Schedules", "e", "M8 2.5a5.5 5.5 0 1 0 .01 0zM8 5v3l2 1.5"),
    NavigationEntry("/limits", "Limits", "l", "M2.5 13a5.5 5.5 0 1 1 11 0M8 13l2.5-4"),
    NavigationEntry("/workers", "Workers", "w", "M3 3h10v4H3zM3 9h10v4H3zM5 5h.1M5 11h.1"),
    NavigationEntry("/cache", "Cache", "a", "M8 2.5 14 6 8 9.5 2 6zM2 10l6 3.5 6-3.5"),
    NavigationEntry(
        "/store",
        "Store",
        "d",
        "M3 4.5c0-2.7 10-2.7 10 0v7c0 2.7-10 2.7-10 0zM3 4.5c0 2.7 10 2.7 10 0M3 8c0 2.7 10 2.7 10 0",
    ),
    NavigationEntry("/activity", "Activity", "y", "M1.5 8.5H5l1.5-5 3 9 1.5-4h3.5"),
    NavigationEntry("/statistics", "Statistics", "s", "M2.5 13.5h11M4 11V8M7 11V4M10 11V6.5M13 11V2.5"),
)
