"""What botocore raises, in the words of our own error tree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from botocore import exceptions as boto  # pyright: ignore[reportMissingTypeStubs]
from botocore.exceptions import ClientError  # pyright: ignore[reportMissingTypeStubs]

from stax.base.errors import Missing, Refused, StoreError, Transient

_MISSING = frozenset({"NoSuchKey", "404", "NotFound"})
_LOST = frozenset({"PreconditionFailed", "412"})
_CONFLICT = frozenset({"ConditionalRequestConflict", "OperationAborted", "409"})

_CREDENTIALS = "check the credentials (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY or the profile)"
_RIGHTS = (
    "grant s3:GetObject, s3:PutObject and s3:ListBucket; without the last S3 hides what is missing"
)
_BUCKET = "check the bucket name and the endpoint, or create the bucket"
_REGION = "set AWS_REGION to the region of the bucket"

# Codes that no repetition mends, and the next step for each.
_REFUSED = {
    "NoSuchBucket": _BUCKET,
    "InvalidBucketName": _BUCKET,
    "AllAccessDisabled": _BUCKET,
    "AccessDenied": _RIGHTS,
    "403": f"{_CREDENTIALS}; {_RIGHTS}",
    "Forbidden": f"{_CREDENTIALS}; {_RIGHTS}",
    "InvalidAccessKeyId": _CREDENTIALS,
    "SignatureDoesNotMatch": _CREDENTIALS,
    "ExpiredToken": "renew the session credentials",
    "InvalidToken": "renew the session credentials",
    "RequestTimeTooSkewed": "set the clock of this machine",
    "PermanentRedirect": _REGION,
    "301": _REGION,
    "AuthorizationHeaderMalformed": _REGION,
    "KeyTooLongError": "use a shorter prefix in the store URL",
    "EntityTooLarge": "the server limits the size of one put",
    "NotImplemented": "the server lacks a feature that the store needs",
    "QuotaExceeded": "free some space in the bucket",
}

# Codes below 500 that may pass all the same.
_TRANSIENT = (
    frozenset(
        {
            "RequestTimeout",
            "SlowDown",
            "Throttling",
            "ThrottlingException",
            "TooManyRequests",
            "429",
        }
        | {
            "BadDigest",
            "IncompleteBody",
            "XAmzContentSHA256Mismatch",
            "RequestLimitExceeded",
            "408",
        }
    )
    | _CONFLICT
)

_NO_CREDENTIALS = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.CredentialRetrievalError,
    boto.TokenRetrievalError,
    boto.ProfileNotFound,
    boto.UnauthorizedSSOTokenError,
)
_NEVER = (boto.ParamValidationError, boto.SSLError, boto.NoRegionError)


def is_missing(error: ClientError) -> bool:
    """The object does not exist."""
    return _code(error) in _MISSING


def is_lost_condition(error: ClientError) -> bool:
    """The condition of a put did not hold. A put with If-Match answers "no such key" for a lost tag."""
    return _code(error) in _LOST or _code(error) in _MISSING


def is_conflict(error: ClientError) -> bool:
    """Another conditional write of the same name was under way."""
    return _code(error) in _CONFLICT


def translate(error: Exception, where: str) -> StoreError:
    """The error of our tree that says the same. ``where`` names bucket, key and endpoint."""
    if isinstance(error, ClientError):
        return _of_answer(error, where)
    if isinstance(error, _NO_CREDENTIALS):
        return Refused("no credentials for S3", found=str(error), where=where, hint=_CREDENTIALS)
    if isinstance(error, _NEVER):
        return Refused("the request can not be sent", found=str(error), where=where)
    return Transient(
        "the server does not answer",
        found=f"{type(error).__name__}: {error}",
        where=where,
        hint="check that the server runs and that the endpoint is right, then try again",
    )


def _of_answer(error: ClientError, where: str) -> StoreError:
    code = _code(error)
    found = f"{code}: {_part(error, 'Error').get('Message', '')}"
    if code in _MISSING:
        return Missing("no such object", where=where)
    if code in _REFUSED:
        return Refused("the server refused", found=found, where=where, hint=_REFUSED[code])
    if code in _TRANSIENT or _status(error) >= 500:
        return Transient("the server is not able to now", found=found, where=where)
    return Refused("the server refused", found=found, where=where)


def _code(error: ClientError) -> str:
    return str(_part(error, "Error").get("Code", ""))


def _status(error: ClientError) -> int:
    return int(str(_part(error, "ResponseMetadata").get("HTTPStatusCode", 0)))


def _part(error: ClientError, name: str) -> Mapping[str, object]:
    response = cast("Mapping[str, Mapping[str, object]]", error.response)
    return response.get(name, {})
