import pytest

from tests.proof.kills import POINTS, prove


@pytest.mark.timeout(120)
async def test_kill_9_at_every_step_loses_no_message_and_doubles_none(tmp_path):
    report = await prove(tmp_path, 2 * len(POINTS))
    assert "none lost" in report
