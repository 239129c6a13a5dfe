"""A Starlette application that reads fifty settings a request: from the cache, from Redis, from a dictionary."""

from __future__ import annotations

import os
import sys
from typing import Any

import msgspec
import redis.asyncio
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from headrace import Headrace

NAMES = [f"setting-{n}" for n in range(50)]
VALUES: dict[str, Any] = {name: {"on": True, "limit": n, "label": "x" * 20} for n, name in enumerate(NAMES)}

app = Headrace(os.environ["BENCH_URL"])
client: Any = redis.asyncio.Redis.from_url(os.environ["BENCH_URL"], protocol=2)
decode = msgspec.msgpack.Decoder().decode


async def from_cache(_: Request) -> JSONResponse:
    return JSONResponse(sum([(await app.cache.aget(name))["limit"] for name in NAMES]))


async def from_redis(_: Request) -> JSONResponse:
    return JSONResponse(sum([decode(await client.get(name))["limit"] for name in NAMES]))


async def from_dict(_: Request) -> JSONResponse:
    return JSONResponse(sum([VALUES[name]["limit"] for name in NAMES]))


def main() -> None:
    with redis.Redis.from_url(os.environ["BENCH_URL"], protocol=2) as plain:
        for name, value in VALUES.items():
            app.cache.set(name, value)
            plain.set(name, msgspec.msgpack.encode(value))
    web = Starlette(routes=[Route("/cache", from_cache), Route("/redis", from_redis), Route("/dict", from_dict)])
    uvicorn.run(web, uds=sys.argv[1], log_level="warning", access_log=False, workers=1)


if __name__ == "__main__":
    main()
