"""Ties to other products, each an extra: ``headrace.contrib.sentry``. Nothing of Headrace imports them."""
