import pytest

from tests.proof.commits import prove_commits
from tests.proof.kills import POINTS, prove
from tests.proof.results import prove_results
from tests.proof.victims import FILES, url_in


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("store", FILES)
async def test_kill_9_at_every_step_loses_no_message_and_doubles_none(tmp_path, store):
    report = await prove(url_in(tmp_path, store), len(POINTS))
    assert "none lost" in report


@pytest.mark.parametrize("store", FILES)
async def test_kill_9_in_the_middle_of_commits_loses_none_and_halves_none(tmp_path, store):
    report = await prove_commits(url_in(tmp_path, store), 300, 10)
    assert "none lost" in report


@pytest.mark.parametrize("store", FILES)
async def test_kill_9_while_tools_run_side_by_side_loses_no_result_and_runs_none_twice(
    tmp_path, store
):
    report = await prove_results(url_in(tmp_path, store), tmp_path, 4)
    assert "none of these was lost" in report
