"""The store contract as tests, shipped so that outside stores can run it too.

Subclass `StoreContract` and provide two pytest fixtures: `store`, an empty store (either face), and `reopen`, a
function that closes it and returns it as a new process would find it (a store that lives in memory returns itself).
The tests are coroutines: run them with the pytest plugin of your choice, or drive them with
`everstep.runtime.blocking.run_to_end` if the fixture gives a blocking face.

Each of the classes that `StoreContract` is made of is about one ability of a store, in a file of its own.
"""

from everstep.testing.ancestry import AncestryContract
from everstep.testing.builders import (
    ODD_NAMES,
    Reopen,
    elsewhere,
    fill,
    follow,
    head_id,
    ids,
    make_object,
    make_record,
    names_found,
    plain,
    put,
    raw_thread,
    stored_objects,
    take_over,
    with_protected,
    written_ids,
)
from everstep.testing.committing import CommitContract
from everstep.testing.deleting import DeletionContract
from everstep.testing.finding import FindingContract
from everstep.testing.listing import ListingContract
from everstep.testing.moving import MovingContract
from everstep.testing.pending_writes import PendingWritesContract
from everstep.testing.reading import ReadingContract
from everstep.testing.taking_over import TakingOverContract
from everstep.testing.waiting import WaitingContract

__all__ = [
    "ODD_NAMES",
    "AncestryContract",
    "CommitContract",
    "DeletionContract",
    "FindingContract",
    "ListingContract",
    "MovingContract",
    "PendingWritesContract",
    "ReadingContract",
    "Reopen",
    "StoreContract",
    "TakingOverContract",
    "WaitingContract",
    "elsewhere",
    "fill",
    "follow",
    "head_id",
    "ids",
    "make_object",
    "make_record",
    "names_found",
    "plain",
    "put",
    "raw_thread",
    "stored_objects",
    "take_over",
    "with_protected",
    "written_ids",
]


class StoreContract(
    ReadingContract,
    CommitContract,
    DeletionContract,
    ListingContract,
    FindingContract,
    AncestryContract,
    PendingWritesContract,
    MovingContract,
    TakingOverContract,
    WaitingContract,
):
    """What every store does. One behaviour per test; the names are the sentences of the contract."""
