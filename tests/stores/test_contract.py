"""Every store passes the shipped contract, on both faces."""

from everstep.testing import StoreContract


class TestStoreContract(StoreContract):
    pass
