"""What a plan did, and how far its results are from those of the original."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from evenkeel._display import Summarised
from evenkeel._errors import InvalidArgumentError
from evenkeel._files import write_text_atomically
from evenkeel.convert._site import Mode
from evenkeel.convert._verify import WHOLE, Check
from evenkeel.recognition import spec_line

__all__ = ["Certificate", "Entry"]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One norm of a certificate.

    Attributes:
        site: its name in the model.
        kind: its class before.
        spec: what it computes, as a line; empty where that is not known.
        action: what was done: ``swap`` or another of the plan's actions, or ``leave``.
        reason: why it was left.
        sought: the action that was looked for.
        note: what else was done.
        checks: what was compared: (what, our distance from float64 in ulps, the original's).

    Example:
        >>> import torch, evenkeel as ek
        >>> certificate = ek.convert.plan(torch.nn.Sequential(torch.nn.LayerNorm(8))).apply(verify=torch.randn(2, 8))
        >>> [check.what for check in certificate.entries[0].checks][:2]
        ['the result', 'the gradient of the stream']
    """

    site: str
    kind: str
    spec: str
    action: str
    reason: str
    sought: str = "swap"
    note: str = ""
    checks: tuple[Check, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Certificate(Summarised):
    """What a plan did, with the errors of each norm and of the model beside the original's own.

    Attributes:
        entries: the norms.
        mode: ``exact`` or ``accurate``.
        model: the comparison of the whole model; empty where no batch was given.
        verified: whether a batch was compared.
        reference: the dtype of the run that the model was compared with: float64, or float32 where an operator of the
            model has no float64.
        versions: of torch.
        plan: which was applied; its `revert` undoes it.

    Example:
        >>> import torch, evenkeel as ek
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8))
        >>> certificate = ek.convert.plan(model).apply(verify=torch.randn(4, 8))
        >>> certificate.swapped, certificate.verified, [check.passed for check in certificate.model]
        (1, True, [True, True])
    """

    views = "evenkeel.convert._views"

    entries: tuple[Entry, ...]
    mode: Mode
    model: tuple[Check, ...] = ()
    verified: bool = False
    reference: str = ""
    versions: dict[str, str]
    plan: Any = field(repr=False, compare=False)

    @classmethod
    def of(cls, plan: Any, checks: dict[tuple[str, str], list[Check]] | None, reference: str) -> Certificate:
        """Gather what was done."""
        found = checks or {}
        entries = tuple(
            Entry(
                site=site.name,
                kind=site.kind,
                spec=spec_line(site.recognition),
                action=site.action,
                reason=site.reason,
                sought=site.sought,
                note=site.note,
                checks=tuple(found.get(site.key, ())),
            )
            for site in plan.sites
        )
        versions = {"torch": str(torch.__version__)}
        whole = tuple(found.get(WHOLE, ()))
        return cls(
            entries=entries,
            mode=plan.mode,
            model=whole,
            verified=checks is not None,
            reference=reference,
            versions=versions,
            plan=plan,
        )

    def __repr__(self) -> str:
        from evenkeel.convert._views import counted

        return f"Certificate({counted(self.entries, done=True)}, verified={self.verified})"

    @property
    def swapped(self) -> int:
        """How many norms were swapped."""
        return sum(entry.action == "swap" for entry in self.entries)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as `save` writes it."""
        return {
            "mode": self.mode,
            "swapped": self.swapped,
            "verified": self.verified,
            "reference": self.reference,
            "versions": self.versions,
            "model": [asdict(check) for check in self.model],
            "norms": [
                {
                    "site": entry.site,
                    "class": entry.kind,
                    "spec": entry.spec,
                    "action": entry.action,
                    "reason": entry.reason,
                    "sought": entry.sought,
                    "note": entry.note,
                    "checks": [asdict(check) for check in entry.checks],
                }
                for entry in self.entries
            ],
        }

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the certificate: whole, or not at all.

        Args:
            path: the file; ``.json`` holds plain data, ``.html`` a page that needs nothing else.

        Returns:
            The path written.

        Raises:
            InvalidArgumentError: the path has another ending.
            EvenkeelError: the file cannot be written, or a page's packages are missing.
        """
        kind = Path(path).suffix
        if kind == ".json":
            return write_text_atomically(path, json.dumps(self.to_dict(), indent=1) + "\n")
        if kind != ".html":
            raise InvalidArgumentError(f"save: expected a path ending in .json or .html, but got {os.fspath(path)!r}")
        from evenkeel.convert._page import certificate_page
        from evenkeel.report import write_page

        return write_page(certificate_page(self), path)
