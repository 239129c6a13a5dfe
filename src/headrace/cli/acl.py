"""``headrace acl``: the access rules of the server that each kind of program needs."""

from __future__ import annotations

from typing import Annotated, Literal

from headrace.cli.arguments import argument
from headrace.cli.session import Session

SHARED = ("namespace", "json", "debug")


def acl(
    session: Session,
    role: Annotated[
        Literal["producer", "worker", "dashboard", "relay"], argument("ROLE", "What the user of the server is for.")
    ],
) -> None:
    """Print the least access rules of the server with which a program of this role works.

    Give them to a user of the server: redis-cli ACL SETUSER NAME on '>PASSWORD' $(headrace acl producer), with set -f.
    A producer enqueues and can read nothing of a job. A relay also enqueues ordered and unique jobs, and workflows. The
    settings durability and replicas add what they need. The rules are made from the scripts of this version: print them
    anew after an upgrade.
    """
    from headrace.protocol.access import access_rules
    from headrace.protocol.durability import durability
    from headrace.protocol.keys import keys_of

    app = session.app()
    keys = keys_of(app.settings.namespace)
    rules = access_rules(role, keys, durability(app.settings))
    if app.client.count > 1:
        rules = [rule.replace(keys.prefix, keys.prefix.replace(":0}", ":*}")) for rule in rules]
    session.output.done(" ".join(rules), {"role": role, "rules": rules})
