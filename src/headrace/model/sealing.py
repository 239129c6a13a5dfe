"""Seals: what protects stored jobs from other programs that use the server. Pure.

:class:`Seal` signs arguments where jobs are stored and checks them where they start. ``Keys`` carries it to each verb
that stores jobs; without keys in the settings there is none, and nothing of this module is loaded. See
docs/design/sealing.md.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator, Sequence

import msgspec

from headrace.errors import BadSignature
from headrace.model import codec
from headrace.model.form import Form, NewJob
from headrace.model.job import Claim

# Headrace's own tasks act on the store alone, and their jobs are made by scripts.
_OWN = "headrace."
_encode = msgspec.msgpack.Encoder().encode


class Seal:
    """Signs and checks the arguments of an application's jobs.

    Attributes:
        required: a job without a right signature does not run.
    """

    def __init__(self, namespace: str, signing: str, *, required: bool) -> None:
        """Make one. ``signing``: keys with a space between two: the first signs, each of them verifies."""
        self.required = required
        self._namespace = namespace
        self._signing = [key.encode() for key in signing.split()]

    def jobs(self, jobs: Sequence[NewJob]) -> list[NewJob]:
        return [msgspec.structs.replace(job, args=self.arguments(job.form, job.id, job.args)) for job in jobs]

    def arguments(self, form: Form, id: str, data: bytes) -> bytes:
        """Arguments as they are stored; those that are signed stay as they are.

        Args:
            id: of the job; empty: the job gets its id on the server. A unique job is signed without its id: a later one
                of its name may give it other arguments.
        """
        if not self._signing or codec.signed_parts(data)[1]:
            return data
        own = () if form.unique or not id else (id, form.options, form.headers)
        return codec.with_signature(data, self._signature(self._signing[0], form.task, own, data))

    def check(self, claim: Claim) -> None:
        """Raises BadSignature: the arguments have no signature, or none of these keys made it for this job."""
        if claim.task.startswith(_OWN):
            return
        data, signature = codec.signed_parts(claim.args)
        if not signature:
            raise BadSignature(
                f"the job of {claim.task} has no signature, and this worker has require_signature: give the setting "
                f"signing_keys to the program that enqueues it, and retry the job if you trust it"
            )
        if not any(hmac.compare_digest(signature, known) for known in self._expected(claim, data)):
            raise BadSignature(
                f"the signature of the job of {claim.task} is not one of this job by any key of signing_keys: another "
                f"program has changed or copied it, or its key is missing here; add that key, or delete the job"
            )

    def _expected(self, claim: Claim, data: bytes) -> Iterator[bytes]:
        for own in ((claim.id, claim.options, claim.headers), ()):
            for key in self._signing:
                yield self._signature(key, claim.task, own, data)

    def _signature(self, key: bytes, task: str, own: tuple[str | bytes, ...], data: bytes) -> bytes:
        return hmac.digest(key, _encode((self._namespace, task, own, data)), "sha256")[: codec.SIGNATURE]
