"""The API: routes from HTTP to `Requests`.  ``/openapi.json`` is its reference."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

from fastapi import FastAPI, Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

import hvdgrab
from launcher.daemon.context import log
from launcher.daemon.http.messages import (
    PROBLEM_HEADER,
    Beginning,
    DaemonStatus,
    Group,
    JobId,
    JobView,
    Name,
    Problem,
    Retry,
    Submission,
)
from launcher.daemon.http.server import ChangeNotifier
from launcher.daemon.requests import ConflictError, NoSuchJobError, Requests
from launcher.errors import LauncherError, UnreachableError
from launcher.jobdir.words import State

LONGEST_WAIT = 60.0
"""Seconds of one `wait` request."""
_REFUSED: dict[int | str, dict[str, Any]] = {
    400: {"model": Problem, "description": "What was sent cannot be used; the text says why."},
    404: {"model": Problem, "description": "There is no such job."},
    409: {"model": Problem, "description": "The job's state forbids it."},
    422: {"model": Problem, "description": "What was sent is malformed; the text says where."},
    503: {"model": Problem, "description": "It cannot be done now, for instance because a disk is full; the text says why."},
}

Id = Annotated[JobId, Path(description="The job's id.")]


class AsciiResponse(JSONResponse):
    """JSON in ASCII: bytes that are no text survive as escapes."""

    def render(self, content: Any) -> bytes:
        """The document."""
        return json.dumps(content).encode("ascii")


def build_app(requests: Requests, changes: ChangeNotifier) -> FastAPI:
    """The application.

    Args:
        requests: what does the work.
        changes: tells that any job has changed.
    """
    app = FastAPI(
        title="hvdgrab launcher daemon",
        version=hvdgrab.__version__,
        default_response_class=AsciiResponse,
        responses=_REFUSED,
        docs_url=None,
        redoc_url=None,
    )
    _add_errors(app)
    _add_daemon(app, requests)
    _add_jobs(app, requests)
    _add_watching(app, requests, changes)
    return app


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(LauncherError)
    async def refused(_: Request, error: LauncherError) -> Response:
        status = 404 if isinstance(error, NoSuchJobError) else 409 if isinstance(error, ConflictError) else 400
        return AsciiResponse({"detail": str(error)}, 503 if isinstance(error, UnreachableError) else status)

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, error: RequestValidationError) -> Response:
        texts = [f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}" for fault in error.errors()]
        return AsciiResponse({"detail": "; ".join(texts)}, 422)  # what was sent is not repeated: it may hold secrets

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        log.error("%s %s", request.method, request.url.path, exc_info=error)
        return AsciiResponse({"detail": f"an error of the daemon itself, see its log: {type(error).__name__}"}, 500)


def _add_daemon(app: FastAPI, requests: Requests) -> None:
    @app.get("/v1/daemon", response_model=DaemonStatus, summary="The daemon about itself.")
    def status() -> Response:
        return AsciiResponse(requests.status().to_json())

    @app.post("/v1/daemon/stop", status_code=202, summary="End the daemon; jobs go on running.")
    def stop() -> dict[str, bool]:
        requests.stop()
        return {"stopping": True}


def _add_jobs(app: FastAPI, requests: Requests) -> None:
    @app.post(
        "/v1/jobs",
        status_code=201,
        response_model=JobView,
        responses={200: {"model": JobView, "description": "It was there already; nothing has changed."}},
        summary="Take a job in; durable when answered, and harmless when repeated.",
    )
    def submit(body: Submission) -> Response:
        view, new = requests.submit(body)
        return AsciiResponse(view.to_json(), 201 if new else 200)

    @app.get("/v1/jobs", response_model=list[JobView], summary="Jobs by order of submission; with limit the newest that many.")
    def jobs(
        state: Annotated[list[State] | None, Query()] = None,
        name: Annotated[Name | None, Query()] = None,
        group: Annotated[Group | None, Query()] = None,
        beginning: Annotated[Beginning, Query(description="Of an id or a group: what people write to name a job.")] = "",
        limit: Annotated[int | None, Query(ge=1, le=1_000_000)] = None,
    ) -> Response:
        return AsciiResponse(
            [view.to_json() for view in requests.views(state or (), name=name, group=group, beginning=beginning, limit=limit)],
            headers=_problem(requests),
        )

    @app.get("/v1/jobs/{id}", response_model=JobView, summary="One job.")
    def job(id: Id) -> Response:
        return AsciiResponse(requests.view(id).to_json(), headers=_problem(requests))

    @app.post("/v1/jobs/{id}/cancel", response_model=JobView, summary="Ask for a job's end; harmless when repeated or late.")
    def cancel(id: Id) -> Response:
        return AsciiResponse(requests.cancel(id).to_json())

    @app.post("/v1/jobs/{id}/retry", response_model=JobView, summary="Queue a failed or cancelled job again.")
    def retry(id: Id, body: Retry) -> Response:
        return AsciiResponse(requests.retry(id, body.environment).to_json())


def _add_watching(app: FastAPI, requests: Requests, changes: ChangeNotifier) -> None:
    @app.get("/v1/jobs/{id}/events", summary="What happened to a job, without the first `after` events.")
    def events(id: Id, after: Annotated[int, Query(ge=0, le=1_000_000_000)] = 0) -> list[dict[str, Any]]:
        return requests.events(id, after)

    @app.get("/v1/jobs/{id}/wait", response_model=JobView, summary="The job, when its state is final or the time is over.")
    async def wait(id: Id, timeout: Annotated[float, Query(ge=0, le=LONGEST_WAIT, allow_inf_nan=False)] = 30.0) -> Response:
        clock = asyncio.get_running_loop()
        end = clock.time() + timeout
        while True:
            changed = changes.listen()
            view = await run_in_threadpool(requests.view, id)
            left = end - clock.time()
            if view.final or left <= 0 or changes.closed:
                return AsciiResponse(view.to_json())
            await changes.wait(changed, left)


def _problem(requests: Requests) -> dict[str, str]:
    """The header that says what keeps the daemon from its work: who asks for jobs needs no second request."""
    return {} if requests.problem is None else {PROBLEM_HEADER: json.dumps(requests.problem)}
