"""Which LayerNorms of Pre-LN models become RMSNorms, exactly, and why others do not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from evenkeel.convert._fold import Affine, Fold, consumers, refuse_uses
from evenkeel.convert._fold_sites import attribute, neutral_of, own, parts_of, single_call
from evenkeel.convert._recentre import ToRms
from evenkeel.convert._site import Site, Swap
from evenkeel.convert._streams import stream_of
from evenkeel.convert._uses import RefusedError, owner_of, places_of
from evenkeel.convert._writers import Writers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evenkeel.convert._graph import Node, Value
    from evenkeel.convert._search import Search
    from evenkeel.recognition import Found

__all__ = ["find_rms_norms"]


def find_rms_norms(search: Search) -> Iterator[Site]:
    """Yield every LayerNorm; those of one stream are converted together."""
    known: dict[Value, Writers | str] = {}
    sites: list[Site] = []
    for found in search.norms:
        spec = found.recognition.spec
        if spec is None or not spec.center or spec.shares != "token" or id(found.module) in search.taken:
            continue
        site = Site(
            name=found.names[0],
            others=tuple(found.names[1:]),
            kind=type(found.module).__name__,
            recognition=found.recognition,
            sought="to_rms_norm",
            module=found.module,
        )
        try:
            node = single_call(search, found.module)
            convert(search, found, site, node, writers_of(search, node.inputs[0], known))
        except RefusedError as error:
            site.reason = str(error)
        sites.append(site)
    for site in sites:
        if site.change is None and id(site.module) in search.taken:
            site.reason = "it goes into the table of the embedding that it reads"
        yield site


def writers_of(search: Search, value: Value, known: dict[Value, Writers | str]) -> Writers:
    """The writers of the stream that a norm reads, looked at once for all its norms.

    Raises:
        RefusedError: the stream cannot be centred.
    """
    if value not in known:
        writers = Writers(search, stream_of(value, len(value.shape) - 1))
        try:
            writers.gather()
            known.update(dict.fromkeys(writers.stream.axes, writers))
        except RefusedError as error:
            known.update(dict.fromkeys(writers.stream.axes, str(error)))
    result = known[value]
    if isinstance(result, str):
        raise RefusedError(result)
    return result


def convert(search: Search, found: Found, site: Site, node: Node, writers: Writers) -> None:
    """Say what is done at a site; the first norm of a stream centres it for all.

    Raises:
        RefusedError: the norm's bias cannot go into its readers.
    """
    module, spec, (roles, layout) = found.module, found.recognition.spec, parts_of(found)
    assert spec is not None
    if layout.axes != 1 or layout.channel_axis != -1:
        raise RefusedError("it normalizes other axes than the last")
    if spec.groups is not None:
        raise RefusedError("its statistics are those of parts of a row, each with a mean of its own")
    if spec.activation is not None:
        raise RefusedError(f"it applies {spec.activation} after the affine")
    if node.inputs[0] in writers.before:
        raise RefusedError("it reads the stream before its mean is subtracted")
    recentre = writers.recentre
    assert recentre is not None
    bias, notes = bias_fold(search, found, node, writers), []
    site.watched = (site.name,)
    if bias is not None:
        into = [owner_of(search.model, use)[2] for use in bias.uses]
        site.watched, site.rescaled = tuple(dict.fromkeys(into)), search.graph.names_with(node.outputs)
        notes.append(f"bias into {places_of(search.model, bias.uses)}")
    if not recentre.readers:
        count = len({id(use.tensor) for use in writers.uses}) + len(writers.tensors)
        notes += [f"{count} writers of the stream without their means", *writers.notes]
        site.rescaled = (*site.rescaled, *search.graph.names_with(writers.stream.axes))
    rms = replace(spec, statistic="rms", center=False, bias=False)
    recognition = replace(found.recognition, layout=layout, roles=replace(roles, bias=None))
    site.change = ToRms(
        swap=Swap(module=module, spec=rms, recognition=recognition),
        idle=None if roles.bias is None else attribute(module, roles.bias),
        bias=bias,
        recentre=None if recentre.readers else recentre,
    )
    recentre.readers.append(module)
    site.action, site.note = "to_rms_norm", "; ".join(notes)
    search.taken.add(id(module))


def bias_fold(search: Search, found: Found, node: Node, writers: Writers) -> Fold | None:
    """The bias of a norm on its way into the products that read it; None where it is zero.

    Raises:
        RefusedError: something else reads the norm's result, or a product has no place for a bias.
    """
    roles, _ = parts_of(found)
    if roles.bias is None:
        return None
    shift = own(found.module, roles.bias)
    affine = Affine(torch.ones_like(shift), shift)
    neutral_of(search, found, [], 0.0)  # it refuses a bias that something else reads
    if not affine.shifts:
        return None
    (output,) = node.outputs
    uses = consumers(output, len(output.shape) - 1)
    uses = [writers.heads[id(use.node)].use if id(use.node) in writers.heads else use for use in uses]
    refuse_uses(search.model, search.graph, uses, affine)
    return Fold(model=search.model, module=found.module, affine=affine, uses=uses)
