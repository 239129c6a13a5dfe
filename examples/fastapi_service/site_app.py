"""A service that counts the words of a text. Requests enqueue; the worker counts."""

from typing import Annotated

from fastapi import Body, FastAPI, Header, HTTPException, Request
from tasks import app, count_words

from headrace import Record
from headrace.contrib.asgi import jobs_site, lifespan
from headrace.errors import JobNotFound


def may_see(request: Request, record: Record) -> bool:
    """An id is no permission: a job belongs to the user that its headers name."""
    return record.headers.get("user") == request.headers.get("user")


site = FastAPI(lifespan=lifespan(app))
site.mount("/jobs", jobs_site(app, authorize=may_see))  # GET /jobs/ID, GET /jobs/ID/events, POST /jobs/ID/cancel


@site.post("/counts", status_code=202)
async def start(text: Annotated[str, Body()], user: Annotated[str, Header()]) -> dict[str, str]:
    job = await count_words.options(headers={"user": user}).aenqueue(text)
    return {"id": job.id}


@site.get("/counts/{id}")
async def result(id: str, user: Annotated[str, Header()]) -> dict[str, int]:
    try:
        record = await app.job(id).arefresh()
    except JobNotFound:
        raise HTTPException(404) from None
    if record.headers.get("user") != user:
        raise HTTPException(404)
    if record.state != "succeeded":
        raise HTTPException(409, record.state)
    return record.result
