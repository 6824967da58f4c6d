"""Imports point down, and each heavy library has one home; the contracts are in pyproject.toml."""

from pathlib import Path

import pytest
from importlinter.application import use_cases
from importlinter.cli import lint_imports  # noqa: F401 - it teaches import-linter to read TOML

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def report():
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.syspath_prepend(str(ROOT))
        options = use_cases.read_user_options(str(ROOT / "pyproject.toml"))
        use_cases._register_contract_types(options)
        return use_cases.create_report(options, cache_dir=None)


def test_every_contract_is_kept(report, capsys):
    if report.contains_failures:
        use_cases.render_report(report)
        pytest.fail(capsys.readouterr().out)
    assert report.kept_count == len(list(report.get_contracts_and_checks()))
