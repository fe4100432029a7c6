"""Requests to stores: again after transient errors, and one clear line for those that stay."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from typing import TypeVar

from evenkeel._errors import EvenkeelError, SourceError
from evenkeel._options.urls import EMPTY_NAME
from evenkeel._threads import beside

Result = TypeVar("Result")

# How often a request is made, and the pause after the first failure, doubled each time: 6 s in all at most.
ATTEMPTS, PAUSE, LONGEST_PAUSE = 6, 0.2, 5.0
UNREACHABLE_ATTEMPTS = 2  # where there is nobody at the address

CREDENTIALS = (
    "give credentials where the store's own tools look for them (S3: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
    "~/.aws, a role; Google: GOOGLE_APPLICATION_CREDENTIALS; Azure: AZURE_STORAGE_KEY, az login) or in "
    "storage_options= (--storage-option), anonymous=true for what is public"
)
# What errors say -> what is said of them. The first that matches counts; the clients have no codes in common.
REFUSALS = (
    (
        r"NO_?SUCH_?BUCKET|bucket does not exist|CONTAINER_?NOT_?FOUND|container does not exist",
        "there is no such bucket; check its name, and the region and endpoint",
    ),
    (
        r"PermanentRedirect|AuthorizationHeaderMalformed|HTTP status 30[17]|wrong region|region '[^']*' is wrong",
        "the bucket is in another region; name it in storage_options= (--storage-option region=…)",
    ),
    (r"SIGNATURE_?DOES_?NOT_?MATCH", f"the secret key is not that of the access key; {CREDENTIALS}"),
    (
        r"INVALID_?ACCESS_?KEY|EXPIRED_?TOKEN|TOKEN_?REFRESH|AuthenticationFailed|OAuth2 access token|"
        r"DefaultAzureCredential",
        f"the credentials are unknown or expired; {CREDENTIALS}",
    ),
    (
        r"ACCESS_?DENIED|PERMISSION_?DENIED|HTTP status 40[13]\b|status=40[13]\b|\b40[13]\b, message|Forbidden|"
        r"Unauthorized|UNAUTHENTICATED",
        f"access denied: there are no credentials, or they may not do this; {CREDENTIALS}",
    ),
    (r"NO_?SUCH_?KEY|RESOURCE_NOT_FOUND|HTTP status 404|(?<![^\s(:])404(?![^\s,:)])", "there is no such object"),
    (r"Empty path component", EMPTY_NAME),
    (
        r"wrong.version.number|packet.length.too.long",
        "the server does not speak TLS at this port; write http:// for https://, in storage_options= "
        "(--storage-option) too: endpoint_override=http://…, scheme=http",
    ),
    (
        r"InsufficientStorage|QuotaExceeded|EntityTooLarge|No space left|HTTP status 507",
        "no space is left in the store",
    ),
)
UNREACHABLE = re.compile(
    r"resolve host|Couldn't connect|Could not connect|Cannot connect|Connection refused|getaddrinfo|Failed to connect|"
    r"SSL connect error",
    re.IGNORECASE,
)
TRANSIENT = re.compile(
    r"SLOW_?DOWN|THROTTL|SERVICE_?UNAVAILABLE|INTERNAL_(?:FAILURE|ERROR)|NETWORK_CONNECTION|TIMED? ?_?OUT|curlCode|"
    r"(?:HTTP status |status=|Azure Error: \[\w*\] )(?:408|429|5\d\d)|\b(?:429|5\d\d), message|disconnected|payload|"
    r"broken pipe|reset by|aborted|ended early|Connection|incomplete",
    re.IGNORECASE,
)
ADDRESS = re.compile(r"(https?://[^\s?'\"]+)\?[^\s'\"]*")  # and what may be a signature
# What libraries say of themselves: colours, stacks, and places of their own source.
NOISE = re.compile(
    r"\x1b\[[\d;]*[A-Za-z]|\n\s*(?:0: |stack (?:backtrace|trace):).*|,? *\S+\.rs:\d+:\d+", re.DOTALL | re.I
)


def refusal(error: BaseException) -> str:
    """What a store refuses for good, in words; nothing for any other error."""
    if isinstance(error, FileNotFoundError):
        return "there is no such object"
    return next((words for pattern, words in REFUSALS if re.search(pattern, str(error), re.IGNORECASE)), "")


def one_line(error: BaseException) -> str:
    """An error's text in one line, without noise and without what may be the signature of a web address."""
    return ADDRESS.sub(r"\1", " ".join(NOISE.sub("", str(error)).split()))[:300]


def explained(url: str, error: BaseException, attempts: int) -> SourceError:
    """The error of a request in one line."""
    text, words = one_line(error), refusal(error)
    if not words and UNREACHABLE.search(str(error)):
        words = "the store cannot be reached; check the address, the endpoint and the network"
    if words:
        return SourceError(f"{url}: {words} ({text[:200]})")
    times = f" {attempts} times" if attempts > 1 else ""
    return SourceError(f"{url}: cannot be read: the store failed{times}: {text}")


def retried(action: Callable[[], Result], url: str) -> Result:
    """The result of a request, made again after transient errors, with growing pauses.

    Raises:
        SourceError: the store refused, or failed every time.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return beside(action)
        except EvenkeelError:
            raise
        except Exception as error:  # fsspec's clients have errors of their own, with no base in common
            text = f"{type(error).__name__} {error}"
            most = UNREACHABLE_ATTEMPTS if UNREACHABLE.search(text) else ATTEMPTS
            if attempt >= most or refusal(error) or not TRANSIENT.search(text):
                raise explained(url, error, attempt) from error
            time.sleep(min(PAUSE * 2 ** (attempt - 1), LONGEST_PAUSE) * random.uniform(0.5, 1.0))
    raise AssertionError("the last attempt returns or raises")
