"""The suite. A package only so that tests can say ``from tests.servers import ...``."""
