import pytest

from tests.proof.drive import drive


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
async def test_whatever_happens_each_message_is_in_one_place_and_answered_once(seed):
    await drive(seed, 150)


@pytest.mark.slow
async def test_it_holds_for_sessions_in_files_too(tmp_path):
    taken = await drive(100, 150, tmp_path)
    assert len(taken) > 15
