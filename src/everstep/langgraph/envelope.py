"""What a checkpoint is besides the values of its channels: its envelope, made when it is put and taken apart when read.

A checkpoint comes back with the fields that it had, those among them that LangGraph does not have yet. What is added to
an envelope here must be read here too, and `channels` must know its type: there an envelope from a store is checked.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from everstep.langgraph.channels import LIST_CHANNEL, PLAIN, SEED, Form, Written
from everstep.stores.protocol import Record

_REQUIRED_FIELDS = frozenset(("id", "ts", "channel_values", "channel_versions", "versions_seen", "v"))
_OWN_FIELDS = _REQUIRED_FIELDS | {"updated_channels"}
_ALWAYS_THERE = frozenset(("v", "channel_versions", "versions_seen"))
_ONLY_DICTS = frozenset((dict,))
_form_of = operator.attrgetter("form")  # only PLAIN is false


def envelope_of(
    checkpoint: Mapping[str, Any],
    versions: dict[str, Any],
    channels: Mapping[str, Written],
    rest: Mapping[str, Written],
    odd: Mapping[str, Any],
    *,
    has_conversation: bool,
) -> dict[str, Any]:
    """Return the envelope of a checkpoint. Its id and its time stand in the record.

    It says in which forms `channels` are kept, and in which those values of `rest` that delta channels begin with.
    """
    seen = checkpoint.get("versions_seen") or {}
    if type(seen) is not dict or not _ONLY_DICTS.issuperset(map(type, seen.values())):
        seen = _plain_entries(seen)
    envelope: dict[str, Any] = {"v": checkpoint.get("v", 1), "channel_versions": versions, "versions_seen": seen}
    if "updated_channels" in checkpoint:
        envelope["updated_channels"] = checkpoint["updated_channels"]
    if not checkpoint.keys() <= _OWN_FIELDS:
        envelope["more"] = {name: value for name, value in checkpoint.items() if name not in _OWN_FIELDS}
    if not checkpoint.keys() >= _REQUIRED_FIELDS:
        envelope["absent"] = sorted(_REQUIRED_FIELDS - checkpoint.keys())
    forms: dict[str, Form] = {}
    if any(map(_form_of, channels.values())):  # asked in one step, since there may be hundreds of plain ones
        forms = {name: value.form for name, value in channels.items() if value.form != PLAIN}
    if has_conversation:
        forms.setdefault(LIST_CHANNEL, PLAIN)
    if forms:
        envelope["forms"] = forms
    seeds = seed_forms(rest) if rest else {}
    if seeds:
        envelope["seeds"] = seeds
    if odd:
        envelope["odd"] = dict(odd)
    return envelope


def seed_forms(rest: Mapping[str, Written]) -> dict[str, Form]:
    """Return the forms of the stored values that delta channels begin with, where they are not plain."""
    seeds: dict[str, Form] = {}
    for name, value in rest.items():
        if name.startswith(SEED) and value.form:
            seeds[name.removeprefix(SEED)] = value.form
    return seeds


def _plain_entries(seen: Mapping[str, Any]) -> dict[str, Any]:
    """Return what nodes have seen as plain dicts; it may hold such as make an entry for whoever asks."""
    return {node: dict(versions) for node, versions in dict(seen).items()}


def is_complete(envelope: Mapping[str, Any]) -> bool:
    """Whether an envelope has what every checkpoint has."""
    return envelope.keys() >= _ALWAYS_THERE


def checkpoint_of(record: Record, envelope: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Return a checkpoint in LangGraph's shape."""
    checkpoint = {
        "v": envelope["v"],
        "id": record.key.checkpoint_id,
        "ts": record.created_at,
        "channel_values": values,
        "channel_versions": envelope["channel_versions"],
        "versions_seen": envelope["versions_seen"],
    }
    if "updated_channels" in envelope:
        checkpoint["updated_channels"] = envelope["updated_channels"]
    checkpoint.update(envelope.get("more", {}))
    return checkpoint
