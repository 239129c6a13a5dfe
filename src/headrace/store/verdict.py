"""What an error of the driver means: the next step, or the error to raise, with what a person can do about it. Pure.

:func:`verdict` sorts each error once, for all callers of the server; :func:`refusal` tells the answer to one call from
a fault of the connection; :func:`advice` says what to check where no answer comes.
"""

from __future__ import annotations

import re
from typing import Literal

from redis import exceptions as driver

from headrace.errors import HeadraceError, ServerError, StoreFull, UrlError
from headrace.store.url import Target

# Redis before 7 wraps what a command inside a script answered into an error of the script.
_WRAPPED = re.compile(r"Error running script [^:]*: @?(\S+:\d+): .*?-?([A-Z]{3,} .*)", re.DOTALL)
# Where in a script: of no use to the person who has to make room, and another text at each script that meets it.
_WHERE = re.compile(r",? script: [^ ]*,? ?on \S+:\d+\.?")
# What servers say when a user may run a script, but not a command, key or channel inside it.
_FORBIDDEN = ("NOPERM", "ACL failure in script", "The user executing the script can't")
_AGAIN = ("LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "READONLY", "NOREPLICAS", "BUSY ", "UNBLOCKED")

Verdict = Literal["again", "load"] | HeadraceError


def verdict(error: Exception, target: Target, doing: str, *, private: bool = False) -> Verdict:
    """What a failed command means.

    Args:
        private: Headrace runs the server itself. It knows the password, so one that refuses it is another server, in a
            directory that was made anew, and is joined as soon as it was looked up.

    Returns:
        ``again``: drop the connection, resolve anew and repeat (after a failover the old node says READONLY for
        ever); ``load``: the server does not know the script; or the error to raise.
    """
    if isinstance(error.__cause__, (driver.AuthenticationError, driver.ResponseError)):
        # The asynchronous driver makes a lost connection of a refused password or database.
        error = error.__cause__
    text = _WRAPPED.sub(r"\2 script: on \1.", str(error))
    if isinstance(error, driver.NoScriptError):
        return "load"
    if (fault := _misnamed(error, target) or _fault(error, text, target, doing)) is not None:
        return "again" if private and isinstance(fault, UrlError) else fault
    # By class too: the driver takes the code that it knows off the text.
    again = (
        driver.ConnectionError, driver.TimeoutError, driver.ReadOnlyError, driver.ClusterDownError,
        driver.MasterDownError, driver.TryAgainError, driver.AskError, OSError,
    )  # fmt: skip
    if isinstance(error, again) or text.startswith(_AGAIN):
        return "again"
    return ServerError(f"{target.shown} answered to {doing}: {text}")


def not_applied(error: BaseException | None) -> bool:
    """Whether no server began what was asked: there was no connection, or the server said that it takes no work."""
    kinds = (driver.ReadOnlyError, driver.ClusterDownError, driver.MasterDownError, driver.BusyLoadingError)
    if error is None or isinstance(error, (ConnectionRefusedError, FileNotFoundError, *kinds)):
        return error is not None
    return str(error).startswith("NOREPLICAS") or not_applied(error.__cause__ or error.__context__)


def refusal(error: Exception, target: Target, doing: str) -> HeadraceError | None:
    """The verdict on an error that answers one call only: the server works, and would not do what this call asks. So it
    is with OOM, MISCONF, NOPERM and errors of scripts. None for all else: a fault of the connection or of the whole
    server, or a script that must be loaded.
    """
    word = verdict(error, target, doing)
    return word if isinstance(error, driver.ResponseError) and isinstance(word, (ServerError, StoreFull)) else None


def _fault(error: Exception, text: str, target: Target, doing: str) -> HeadraceError | None:
    """The error to raise for what no repetition will repair; None for all else."""
    if isinstance(error, (driver.AuthenticationError, driver.AuthorizationError)) or text.startswith(
        ("NOAUTH", "WRONGPASS")
    ):
        place = "in the URL" if target.credentials is None else f"that {target.credentials.source} gives"
        return UrlError(f"{target.shown} refused the credentials, so check user and password {place}")
    if "CERTIFICATE_VERIFY_FAILED" in (said := _told(error)):
        return ServerError(_certificate(said, target))
    if isinstance(error, driver.InvalidResponse):
        return ServerError(f"{target.shown} does not speak the protocol of Redis ({text}){_speaks(text, target)}")
    if isinstance(error, driver.NoPermissionError) or any(sign in text for sign in _FORBIDDEN):
        return ServerError(
            f"{target.shown} does not permit {doing}: give its user the namespace's keys, channels and scripts ({text})"
        )
    if isinstance(error, driver.OutOfMemoryError) or text.startswith(("OOM", "MISCONF")):
        why = _WHERE.sub("", text)
        return StoreFull(f"{target.shown} refused to store: its memory or disk is full ({why})")
    return ServerError(f"{target.shown} {_NO_DISK['unknown' in text]}") if "WAITAOF" in text else None


_NO_DISK = (
    'has no append-only file for durability="fsync": set appendonly yes, or ask for "memory" or "replicated"',
    'is too old for durability="fsync": upgrade it to Redis 7.2 or Valkey 7.2, or ask for "memory" or "replicated"',
)


def _misnamed(error: Exception, target: Target) -> UrlError | None:
    if not target.seeds:
        return node_of_a_cluster(target) if isinstance(error, driver.AskError) else None
    if "cluster support disabled" not in str(error):
        return None
    scheme = "rediss" if target.tls else "redis"
    return UrlError(f"{target.shown} is not a cluster: write {scheme}://host:6379 in the URL")


def node_of_a_cluster(target: Target) -> UrlError:
    scheme = "clusters" if target.tls else "cluster"
    return UrlError(
        f"{target.shown} is a node of a cluster, and others may have the jobs: name some of its nodes in the URL, as "
        f"{scheme}://host:6379,host:6379"
    )


def _told(error: BaseException) -> str:
    cause = error.__cause__ or error.__context__
    return str(error) if cause is None else f"{error}: {_told(cause)}"


def _certificate(text: str, target: Target) -> str:
    reason = text.partition("certificate verify failed: ")[2].partition(" (_ssl")[0] or text
    step = "name the file of the authority that signed it with ?ssl_ca_certs=/path"
    if "mismatch" in reason and target.seeds:
        step = "have each node announce a name that it is valid for (cluster-announce-hostname), or use "
        step += "?ssl_check_hostname=false"
    elif "mismatch" in reason:
        step = "use a name in the URL that it is valid for, or ?ssl_check_hostname=false"
    elif "expired" in reason:
        step = "renew it"
    return f"{target.shown} shows a certificate that is not accepted ({reason.rstrip('.')}): {step}"


def _scheme(target: Target, *, tls: bool) -> str:
    kind = "sentinel" if target.sentinels else "cluster" if target.seeds else "redis"
    return kind + ("s://" if tls else "://")


def _speaks(text: str, target: Target) -> str:
    if 'got "H"' in text or 'got "<"' in text:  # HTTP, or HTML without its head
        return ": it looks like a web server; check host and port of the URL"
    if target.tls:
        return f": the port may be one without TLS, then write {_scheme(target, tls=False)}"
    return "" if "path" in target.options else f": the port may be one with TLS, then write {_scheme(target, tls=True)}"


# How a connection ends that was made, and then spoke in a way that the other end did not expect.
_ENDED = (
    "reset by peer", "closed by server", "closed the connection", "EOF occurred", "alert", "Broken pipe",
    "Connection lost",
)  # fmt: skip
# What a TLS client says of a port that answers in another way, or waits for more.
_PLAIN = ("WRONG_VERSION_NUMBER", "handshake", "Timeout connecting", "UNEXPECTED_EOF", "RECORD_LAYER")


# What a server says that runs and takes no work, or stands in the way to it, and what to do.
_STEPS = {
    "max number of clients": "it runs, and has no room: raise its maxclients, or end programs that use it.",
    "read only replica": "it is a replica: write the URL of its master, or wait until one is promoted.",
    "loading the dataset": "it runs, and loads its data: wait.",
    "with MASTER is down": "it is a replica, and its master is away: write another URL, or wait until one is promoted.",
    "NOREPLICAS": "it runs, and too few replicas follow: start some, or lower its min-replicas-to-write.",
    "busy running a script": "it runs a script of a program: wait, or end that script by SCRIPT KILL.",
    "lot not served": "no node serves the slot of the namespace: start its node, or give the slot to another node.",
    "no node serves slot": "start its node, or give the slot to another node.",
    "cluster is down": "most primaries are away, or a slot has no node (CLUSTER INFO tells): start the nodes that are "
    "missing, and set cluster-require-full-coverage to no, so that slots with a node are served.",
    "TRYAGAIN": "the slot of the namespace is moving key by key to another node, and is served when it is there.",
    # What check_files says.
    " has ssl_": "correct the file.",
    # What Credentials.login says.
    "no credentials came from": "correct what gives them.",
}


def advice(error: BaseException, target: Target) -> str:
    text = _told(error)
    for sign, step in _STEPS.items():
        if sign in text:
            return step
    if target.tls and any(sign in text for sign in _PLAIN):
        other = _scheme(target, tls=False)
        return f"is the server running, and does this port speak TLS? If it does not, write {other} in the URL."
    if target.tls and "ssl_certfile" not in target.options and any(sign in text for sign in _ENDED):
        step = "If it does, add ?ssl_certfile=/path&ssl_keyfile=/path to the URL."
        return f"is the server running, and does it ask for a client's certificate? {step}"
    if not target.tls and "path" not in target.options and any(sign in text for sign in _ENDED):
        other = _scheme(target, tls=True)
        return f"is the server running, and does this port speak TLS? If it does, write {other} in the URL."
    if "knows no master" in text:
        return "check the name in the URL."
    question = "is the server running"
    if target.sentinels:
        question = f"do the Sentinels run, and their master {target.service!r}"
    elif target.seeds:
        question = "do the cluster's nodes run, and do those in the URL belong to it"
    if "ssl_certfile" in target.options and "alert" in text:
        question = "does the server accept the certificate that ssl_certfile names, or has that expired"
    return f"{question}?"
