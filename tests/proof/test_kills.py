import pytest

from tests.proof.approvals import prove_approvals
from tests.proof.bursts import prove_bursts, prove_ids
from tests.proof.commits import prove_commits
from tests.proof.kills import POINTS, prove
from tests.proof.ledger import prove_ledger
from tests.proof.payments import prove_payments
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


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", [*FILES, "postgres", "redis"])
async def test_kill_9_around_a_yes_runs_the_call_once_and_only_on_that_yes(tmp_path, kind, request):
    store = kind if kind in FILES else request.getfixturevalue(f"{kind}_url")
    report = await prove_approvals(tmp_path, store, kills=10)
    assert "none ran without a yes" in report


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("store", FILES)
async def test_payments_over_a_bad_line_are_made_once_however_often_the_daemon_is_killed(
    tmp_path, store
):
    report = await prove_payments(tmp_path, store, payments=60, kills=6)
    assert "each order is in the ledger once" in report


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("kind", [*FILES, "postgres", "redis"])
async def test_of_two_daemons_that_are_killed_and_stopped_each_message_has_one_answer(
    tmp_path, kind, request
):
    store = kind if kind in FILES else request.getfixturevalue(f"{kind}_url")
    report = await prove_ledger(
        tmp_path, store, kills=5, chats=8, messages=100, stop_seconds=9 if kind == "sqlite" else 0
    )
    assert "none lost" in report


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("store", FILES)
async def test_what_was_kept_of_a_burst_before_a_kill_is_answered_once(tmp_path, store):
    report = await prove_bursts(tmp_path, store, bursts=3)
    assert "none lost" in report


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("store", FILES)
async def test_a_message_id_sent_twice_to_two_daemons_at_once_is_answered_once(tmp_path, store):
    report = await prove_ids(tmp_path, store, ids=200)
    assert "none answered twice" in report
