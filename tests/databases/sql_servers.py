"""PostgreSQL over TLS and MariaDB, from Debian's packages (``.ci/databases``), private and on loopback.

PostgreSQL refuses to run as root, so there it runs as ``nobody``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.deadline import eventually
from tests.servers import free_port
from tests.tls import AUTHORITY, certificate

NOBODY = 65534


@dataclass(frozen=True)
class SqlServer:
    """A server that runs.

    Attributes:
        url: for SQLAlchemy.
        django: the entry of ``DATABASES``.
    """

    url: str
    django: dict[str, Any]


def binary(name: str) -> str | None:
    paths = [
        *map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)),
        os.environ["PATH"],
        "/usr/sbin",
    ]
    return shutil.which(name, path=os.pathsep.join(paths))


def needed(*names: str) -> list[str]:
    """The binaries; the test is skipped where one is missing."""
    found = [binary(name) for name in names]
    if None in found:
        pytest.skip(f"{names[found.index(None)]} is not installed: .ci/databases installs it on Debian")
    return [path for path in found if path]


@contextlib.contextmanager
def postgresql() -> Iterator[SqlServer]:
    initdb, postgres = needed("initdb", "postgres")
    with tempfile.TemporaryDirectory(prefix="hr-pg-") as name:
        directory, port = Path(name), free_port()
        pem = certificate("server").read_text()
        key, _, rest = pem.partition("-----BEGIN CERTIFICATE-----")
        (directory / "key.pem").write_text(key)
        (directory / "cert.pem").write_text(f"-----BEGIN CERTIFICATE-----{rest}")
        (directory / "key.pem").chmod(0o600)
        root: dict[str, Any] = {}
        if os.geteuid() == 0:
            root = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
            for path in (directory, *directory.iterdir()):
                os.chown(path, NOBODY, NOBODY)
        data = directory / "data"
        words = [initdb, "-D", data, "-U", "shop", "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C"]
        subprocess.run(words, check=True, capture_output=True, cwd=directory, **root)
        (data / "pg_hba.conf").write_text("hostssl all all 127.0.0.1/32 trust\n")
        options = {
            "listen_addresses": "127.0.0.1", "port": port, "unix_socket_directories": directory, "fsync": "off",
            "ssl": "on", "ssl_cert_file": directory / "cert.pem", "ssl_key_file": directory / "key.pem",
            "max_connections": 60, "shared_buffers": "16MB",
        }  # fmt: skip
        given = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        with (directory / "log").open("w") as log:
            process = subprocess.Popen([postgres, "-D", data, *given], stdout=log, stderr=log, cwd=directory, **root)
        tls = {"sslmode": "verify-full", "sslrootcert": str(AUTHORITY)}
        query = "&".join(f"{name}={value}" for name, value in tls.items())
        server = SqlServer(
            f"postgresql+psycopg://shop@127.0.0.1:{port}/postgres?{query}",
            {
                "ENGINE": "django.db.backends.postgresql", "NAME": "postgres", "USER": "shop", "HOST": "127.0.0.1",
                "PORT": port, "OPTIONS": tls,
            },
        )  # fmt: skip
        yield from _served(process, server, signal.SIGQUIT)


@contextlib.contextmanager
def mariadb() -> Iterator[SqlServer]:
    install, daemon = needed("mariadb-install-db", "mariadbd")
    with tempfile.TemporaryDirectory(prefix="hr-my-") as name:
        directory, port = Path(name), free_port()
        data = directory / "data"
        user = ["--user=root"] if os.geteuid() == 0 else []
        words = [install, "--no-defaults", f"--datadir={data}", "--auth-root-authentication-method=normal", *user]
        subprocess.run(words, check=True, capture_output=True)
        given = [
            f"--datadir={data}", f"--socket={directory}/s.sock", f"--port={port}", "--bind-address=127.0.0.1",
            "--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=16M", "--skip-log-bin",
            f"--pid-file={directory}/pid", *user,
        ]  # fmt: skip
        with (directory / "log").open("w") as log:
            process = subprocess.Popen([daemon, "--no-defaults", *given], stdout=log, stderr=log)
        server = SqlServer(
            f"mysql+pymysql://root@127.0.0.1:{port}/shop?charset=utf8mb4",
            {"ENGINE": "django.db.backends.mysql", "NAME": "shop", "USER": "root", "HOST": "127.0.0.1", "PORT": port},
        )
        yield from _served(process, server, signal.SIGKILL, f"mysql+pymysql://root@127.0.0.1:{port}/")


def _served(
    process: subprocess.Popen[bytes], server: SqlServer, stop: signal.Signals, empty: str = ""
) -> Iterator[SqlServer]:
    from sqlalchemy import create_engine, text
    from sqlalchemy.exc import OperationalError

    def answers() -> bool:
        assert process.poll() is None
        engine = create_engine(empty or server.url)
        try:
            with engine.begin() as connection:
                connection.execute(text("create database if not exists shop" if empty else "select 1"))
        except OperationalError:
            return False
        finally:
            engine.dispose()
        return True

    try:
        eventually(answers)
        yield server
    finally:
        process.send_signal(stop)
        process.wait(30)
