"""Seals: what protects stored jobs from other programs that use the server. Pure.

:class:`Seal` encrypts and signs where jobs are stored, and checks and decrypts where they start and where their
results are read. ``Keys`` carries it to each verb that stores jobs; without keys in the settings there is none, and
nothing of this module is loaded. See docs/design/sealing.md.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import hmac
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from headrace.errors import BadSignature, MissingExtra, NotDecrypted
from headrace.model import codec
from headrace.model.form import Form, NewJob
from headrace.model.hidden_values import encrypts, hides
from headrace.model.ids import flow_of
from headrace.model.job import Claim, JobError, error_json, parse_error
from headrace.model.job_record import Record

# Headrace's own tasks act on the store alone, and their jobs are made by scripts.
_OWN = "headrace."
_NONCE = 12
_encode = msgspec.msgpack.Encoder().encode
_halves = msgspec.msgpack.Decoder(tuple[list[msgspec.Raw], dict[str, msgspec.Raw]])
# Key, part, task, id, and the encrypted bytes behind their nonce.
_sealed = msgspec.msgpack.Decoder(tuple[bytes, str, str, str, bytes])

Fits = Callable[[str], bool]


class Seal:
    """Signs, checks, encrypts and decrypts what is stored of an application's jobs.

    Attributes:
        required: a job without a right signature does not run.
        encrypting: there is a key to encrypt with.
        closed: what is read stays hidden; commands and pages show no plain text.
    """

    def __init__(self, namespace: str, signing: str, encryption: str = "", *, required: bool = False) -> None:
        """Make one. The first key of each ring signs or encrypts, each one reads. Raises MissingExtra: cryptography."""
        self.required = required
        self.closed = False
        self._namespace = namespace
        self._signing = [key.encode() for key in signing.split()]
        self._ring = {hashlib.sha256(key).digest()[:4]: key for key in map(str.encode, encryption.split())}
        self.encrypting = bool(self._ring)
        if self._ring:
            try:
                from cryptography.hazmat.primitives.ciphers.aead import AESGCM
            except ImportError:
                text = "encryption_keys needs cryptography: pip install 'headrace[encryption]'"
                raise MissingExtra(text) from None
            self._cipher: Any = AESGCM

    def jobs(self, jobs: Sequence[NewJob]) -> list[NewJob]:
        return [msgspec.structs.replace(job, args=self.arguments(job.form, job.id, job.args)) for job in jobs]

    def arguments(self, form: Form, id: str, data: bytes) -> bytes:
        """Arguments as they are stored: encrypted where the form says so, and signed. What is sealed stays as it is.
        ``id``: of the job; empty: the job gets its id on the server. A unique job is sealed without its id: a later one
        of its name may give it other arguments.
        """
        if codec.signed_parts(data)[1] or form.task.startswith(_OWN):
            return data
        bound = "" if form.unique else id
        if self._ring and form.secrets:
            data = self._hidden(form, bound, data)
        if not self._signing:
            return data
        own = (id, form.options, form.headers) if bound else ()
        return codec.with_signature(data, self._signature(self._signing[0], form.task, own, data))

    def _hidden(self, form: Form, id: str, data: bytes) -> bytes:
        if codec.sealed_part(data) is not None:
            return data
        places = form.secrets
        if encrypts(places) or codec.is_json(data):
            return self.encrypted("args", form.task, id, data)

        def part(name: str, raw: msgspec.Raw) -> msgspec.Raw:
            value = bytes(raw)
            plain = not hides(places, name) or codec.sealed_part(value) is not None
            return raw if plain else msgspec.Raw(self.encrypted(name, form.task, id, value))

        positions, named = _halves.decode(data)
        return _encode((
            [part(str(n), raw) for n, raw in enumerate(positions, 1)],
            {name: part(name, raw) for name, raw in named.items()},
        ))  # fmt: skip

    def encrypted(self, part: str, task: str, id: str, data: bytes) -> bytes:
        """A value, as another one. ``part``: which of a job: ``args``, the place of an argument, ``result``, ``error``.
        Its nonce follows from key and value, so that a repeated call stores the same bytes.
        """
        key_id, key = next(iter(self._ring.items()))
        bound = self._bound(part, task, id)
        nonce = hmac.digest(key, _encode(("nonce", bound, data)), "sha256")[:_NONCE]
        sealed = nonce + self._cipher(hmac.digest(key, bound, "sha256")).encrypt(nonce, data, bound)
        return codec.sealed(_encode((key_id, part, task, id, sealed)))

    def result(self, claim: Claim, places: str, data: bytes) -> bytes:
        hidden = self._ring and (encrypts(places) or hides(places, "return"))
        return self.encrypted("result", claim.task, claim.id, data) if hidden else data

    def error(self, claim: Claim, shown: bytes, whole: bytes) -> bytes:
        """An error that shows no text, with the whole one in it, encrypted. Both are JSON of a JobError."""
        error = parse_error(shown)
        if error is None or not self._ring:
            return shown
        sealed = base64.b64encode(self.encrypted("error", claim.task, claim.id, whole)).decode()
        return error_json(msgspec.structs.replace(error, sealed=sealed))

    def opened(self, claim: Claim) -> Claim:
        """A claim with plain arguments and inputs, checked before anything of it is decoded. Raises BadSignature: a
        signature is required, and it has none that is right. Raises NotDecrypted: a key is missing, or another program
        has changed or copied what is encrypted.
        """
        if self.required:
            self.check(claim)
        args = self.plain_arguments(claim.task, claim.id, claim.args)
        flow = flow_of(claim.id)
        inputs = tuple(
            msgspec.structs.replace(one, output=self.opened_value(one.output, lambda id: flow_of(id) == flow))
            for one in claim.inputs
        )
        return msgspec.structs.replace(claim, args=args, inputs=inputs)

    def plain_arguments(self, task: str, id: str, data: bytes) -> bytes:
        def fits(other: str) -> bool:
            return other in ("", id)

        data = codec.signed_parts(data)[0]
        payload = codec.sealed_part(data)
        if payload is not None:
            return self._decrypted(payload, "args", fits, task)
        if codec.is_json(data) or codec.SEALED not in data:
            return data
        try:
            positions, named = _halves.decode(data)
        except (msgspec.MsgspecError, ValueError):
            return data
        return _encode((
            [self._plain(raw, str(n), fits, task) for n, raw in enumerate(positions, 1)],
            {name: self._plain(raw, name, fits, task) for name, raw in named.items()},
        ))  # fmt: skip

    def _plain(self, raw: msgspec.Raw, part: str, fits: Fits, task: str) -> msgspec.Raw:
        payload = codec.sealed_part(bytes(raw))
        return raw if payload is None else msgspec.Raw(self._decrypted(payload, part, fits, task))

    def opened_value(self, data: bytes, fits: Fits) -> bytes:
        """A result, or the list of several, in plain. ``fits``: whether a job of this id may have made it."""
        if codec.SEALED not in data or self.closed:
            return data

        def put(code: int, payload: memoryview) -> Any:
            if code != codec.SEALED:
                return msgspec.msgpack.Ext(code, bytes(payload))
            return msgspec.Raw(self._decrypted(bytes(payload), "result", fits))

        return codec.PLAIN.encode(msgspec.msgpack.Decoder(ext_hook=put).decode(data))

    def opened_record(self, record: Record) -> Record:
        result = record.packed_result
        return dataclasses.replace(
            record,
            packed_args=self.plain_arguments(record.task, record.id, record.packed_args),
            packed_result=None if result is None else self.opened_value(result, lambda id: id == record.id),
        )

    def opened_error(self, id: str, error: JobError | None) -> JobError | None:
        if error is None or not error.sealed or self.closed:
            return error
        payload = codec.sealed_part(base64.b64decode(error.sealed))
        try:
            return error if payload is None else parse_error(self._decrypted(payload, "error", lambda one: one == id))
        except NotDecrypted:
            return error

    def _decrypted(self, payload: bytes, part: str, fits: Fits, task: str | None = None) -> bytes:
        try:
            key_id, was, of, id, data = _sealed.decode(payload)
        except (msgspec.MsgspecError, ValueError):
            raise NotDecrypted("encrypted bytes cannot be read: another program wrote or cut them") from None
        key = self._ring.get(key_id)
        if key is None:
            raise NotDecrypted(
                f"what job {id} of {of} has encrypted needs a key that encryption_keys lacks here: add the key with "
                f"which it was stored, and retry the job where it was to run"
            )
        if was != part or not fits(id) or task not in (None, of):
            raise NotDecrypted(f"what job {id} of {of} has encrypted stands in the place of something else")
        bound = self._bound(part, of, id)
        try:
            plain: bytes = self._cipher(hmac.digest(key, bound, "sha256")).decrypt(data[:_NONCE], data[_NONCE:], bound)
        except Exception:  # noqa: BLE001 - InvalidTag; or ValueError of bytes that were cut
            raise NotDecrypted(
                f"what job {id} of {of} has encrypted cannot be decrypted: another program has changed it, or it is of "
                f"another namespace"
            ) from None
        return plain

    def _bound(self, part: str, task: str, id: str) -> bytes:
        return _encode((self._namespace, part, task, id))

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


def opened_result(seal: Seal | None, id: str, data: bytes) -> bytes:
    """The result of one job in plain. Raises NotDecrypted: it is encrypted, and cannot be read here."""
    if seal is not None:
        return seal.opened_value(data, lambda other: other == id)
    if codec.sealed_part(data) is not None:
        raise NotDecrypted(f"the result of job {id} is encrypted: give this program the setting encryption_keys")
    return data
