"""A test suite for any store, including your own.

class TestMyStore(StoreSuite):
    @pytest.fixture
    async def store(self, clock, tmp_path):
        made = MyStore(tmp_path, clock=clock)
        yield made
        await made.close()

`clock()` returns the time that the store must use. If your store does not accept a clock, override
the fixture `clock` with one that calls `pytest.skip`: the tests that need it are then skipped. The
test run needs pytest and anyio's pytest plugin.
"""

import pytest

# Registered before the import, so that failed assertions show their values.
pytest.register_assert_rewrite(f"{__name__}.keeping", f"{__name__}.ending", f"{__name__}.owing")

from nanoloop.testing.stores.ending import (  # noqa: E402 - as above
    ErasingEntries,
    ExpiringSessions,
    RacingWriters,
)
from nanoloop.testing.stores.keeping import (  # noqa: E402 - as above
    BindingKeys,
    ListingSessions,
    LoadingWindows,
    MakingSessions,
    ReadingEntries,
    SavingSessions,
)
from nanoloop.testing.stores.owing import (  # noqa: E402 - as above
    HoldingAccounts,
    KeepingQueues,
    RememberingMessages,
    TellingOwed,
)
from nanoloop.testing.stores.stage import SetClock  # noqa: E402 - as above

__all__ = ["SetClock", "StoreSuite"]


class StoreSuite(
    MakingSessions,
    SavingSessions,
    LoadingWindows,
    ReadingEntries,
    ListingSessions,
    BindingKeys,
    ErasingEntries,
    ExpiringSessions,
    RacingWriters,
    KeepingQueues,
    TellingOwed,
    RememberingMessages,
    HoldingAccounts,
):
    """The whole suite; your subclass provides a fixture `store`, an empty store for each test."""

    @pytest.fixture
    def clock(self) -> SetClock:
        """Return the clock that the store uses."""
        return SetClock()
