"""What is set, by whom, and what is refused, told with its place."""

import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr, ValidationError

from nanoloop.errors import SettingsError
from nanoloop.settings import Settings
from nanoloop.settings.files import read_file
from nanoloop.settings.keys import known_settings, variable
from nanoloop.settings.problems import GONE, instead
from tests.packages import is_gone

ROOT = Path(__file__).parent.parent


@pytest.fixture
def load(tmp_path):
    """Load with a file of that text, in an otherwise empty world."""

    def load(text="", *, env=None, flags=None):
        file = tmp_path / "nanoloop.toml"
        file.write_text(text)
        world = {"HOME": str(tmp_path / "home")} | (env or {})
        return Settings.load(config=file, env=world, flags=flags, cwd=tmp_path)

    return load


@pytest.fixture
def refusal(load):
    """The lines of what is refused, without the folder in front of the file."""

    def refusal(text="", **world):
        with pytest.raises(SettingsError) as caught:
            load(text, **world)
        return [line.rpartition("/nanoloop.toml:")[2] for line in str(caught.value).splitlines()]

    return refusal


def test_the_promised_defaults():
    settings = Settings()
    assert settings.message_buffer_limit == 50
    assert settings.message_buffer_min == 10
    assert settings.summary_model is None
    assert settings.store.durability == "flush"


def test_the_environment_beats_the_file_and_a_flag_beats_both(load):
    text = 'model = "file"\n'
    assert load(text).model == "file"
    assert load(text, env={"NANOLOOP_MODEL": "env"}).model == "env"
    assert load(text, env={"NANOLOOP_MODEL": "env"}, flags={"model": "flag"}).model == "flag"
    assert load(text, flags={"model": None}).model == "file"


def test_each_value_knows_where_it_came_from(load, tmp_path):
    text = "# first\nmessage_buffer_min = 5\n[loop]\nmax_concurrent_turns = 3\n"
    settings = load(text, env={"NANOLOOP_STORE__URL": "memory:"}, flags={"log.level": "debug"})
    file = tmp_path / "nanoloop.toml"
    assert str(settings.origin("message_buffer_min")) == f"{file}:2"
    assert str(settings.origin("loop.max_concurrent_turns")) == f"{file}:4"
    assert str(settings.origin("store.url")) == "env NANOLOOP_STORE__URL"
    assert str(settings.origin("log.level")) == "flag --log-level"
    assert str(settings.origin("model")) == "default"


def test_a_named_file_beats_the_current_folder_and_that_the_users_folder(tmp_path):
    home, here = tmp_path / "home" / ".config" / "nanoloop", tmp_path / "here"
    for folder in (home, here):
        folder.mkdir(parents=True)
    world = {"env": {"HOME": str(tmp_path / "home")}, "cwd": here}
    (home / "nanoloop.toml").write_text('prompt = "user"')
    assert Settings.load(**world).prompt == "user"
    (here / "nanoloop.toml").write_text('prompt = "folder"')
    assert Settings.load(**world).prompt == "folder"
    named = tmp_path / "my.toml"
    named.write_text('prompt = "mine"')
    assert Settings.load(config=named, **world).prompt == "mine"
    world["env"] |= {"NANOLOOP_CONFIG": str(named)}
    assert Settings.load(**world).prompt == "mine"


def test_data_lies_where_the_user_keeps_data(load, tmp_path):
    assert load().data == tmp_path / "home/.local/share/nanoloop"
    assert load(env={"XDG_DATA_HOME": "/srv"}).data == Path("/srv/nanoloop")
    assert load(env={"NANOLOOP_DATA": "kept"}).data == Path("kept")
    assert load('data = "~/kept"').data == Path.home() / "kept"


def test_openai_names_are_honoured_and_ours_are_stronger(load):
    env = {"OPENAI_API_KEY": "theirs", "OPENAI_BASE_URL": "http://theirs/v1"}
    assert load(env=env).api_key.get_secret_value() == "theirs"
    assert str(load(env=env).origin("base_url")) == "env OPENAI_BASE_URL"
    env |= {"NANOLOOP_API_KEY": "ours", "NANOLOOP_BASE_URL": "http://ours/v1/"}
    assert load(env=env).api_key.get_secret_value() == "ours"
    assert load(env=env).base_url == "http://ours/v1"


def test_a_model_can_be_asked_with_a_key_or_a_server(load):
    assert not load(env={"OPENAI_API_KEY": ""}).has_model
    assert load(env={"OPENAI_API_KEY": "x"}).has_model
    assert load('base_url = "http://localhost:1"').has_model


def test_the_environment_says_yes_lists_and_tables_as_text(load):
    env = {
        "NANOLOOP_INCLUDE_TIME": "yes",
        "NANOLOOP_AGENTS__COOK__TOOLS": "time, scales",
        "NANOLOOP_PROVIDER__OPTIONS": '{"temperature": 0}',
    }
    settings = load(env=env)
    assert settings.include_time
    assert settings.agents["cook"].tools == ("time", "scales")
    assert settings.provider.options == {"temperature": 0}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("\nmesage_buffer_limit = 40", "2: mesage_buffer_limit is 40, but there is no such"),
        ("max_steps = 3", "did you mean turn.max_steps?"),
        ('[stor]\nkind = "x"', "1: stor is a table, but there is no such setting: did you mean st"),
        ("[agents.smith]\npromt = 1", "2: agents.smith.promt is 1, but there is no such setting"),
        ("[agents.smith]\npromt = 1", "did you mean agents.smith.prompt?"),
        ('xyzzy = "q"', '1: xyzzy is "q", but there is no such setting: `nanoloop config` lists'),
        ("model = 5", "1: model is 5, not a string"),
        ('message_buffer_limit = "50"', 'message_buffer_limit is "50", not a whole number'),
        ("include_time = 1", "1: include_time is 1, not true or false"),
        ("[turn]\nmax_steps = 0", "2: turn.max_steps is 0, less than 1: raise it"),
        ("tools.timeout_seconds = inf", "1: tools.timeout_seconds is Infinity, not a finite"),
        ("loop = 5", "1: loop is 5, not a table"),
        ("[agents]\ncook = 5", "2: agents.cook is 5, not a table"),
        ('base_url = "host"', '1: base_url is "host", not an address: begin it with http://'),
        ('log.level = "eror"', "not 'debug', 'info', 'warning' or 'error': did you mean 'error'?"),
        ("message_buffer_min = 60", "1: message_buffer_min is 60, more than message_buffer_limit"),
        ("message_buffer_limit = 10", "message_buffer_min is 10, the same as message_buffer_limit"),
        ("[provider]\ncall_timeout_seconds = 5", "2: provider.first_token_timeout_seconds is 60, "),
        ('store = {url = "memory:", durability = "fsync"}', "stores nothing on disk: choose"),
        ("\nmodel = ", "2: not valid TOML: Invalid value"),
        ('sentences.modl_down = "x"', "did you mean sentences.model_down?"),
        ('[sentences]\nkept = "  "', '2: sentences.kept is "  ", too short: set a value'),
    ],
)
def test_what_is_wrong_in_the_file_is_told_with_its_line(refusal, text, line):
    assert any(line in told for told in refusal(text))


@pytest.mark.parametrize(
    ("env", "line"),
    [
        ({"NANOLOOP_MODLE": "x"}, 'env NANOLOOP_MODLE is "x", but there is no such setting: '),
        ({"NANOLOOP_MODLE": "x"}, "did you mean NANOLOOP_MODEL?"),
        ({"NANOLOOP_LOG_LEVEL": "info"}, "did you mean NANOLOOP_LOG__LEVEL?"),
        ({"NANOLOOP_LOOP": "5"}, 'env NANOLOOP_LOOP: loop is "5", not a table'),
        ({"NANOLOOP_MESSAGE_BUFFER_MIN": "few"}, 'message_buffer_min is "few", not a whole'),
        ({"NANOLOOP_PROVIDER__OPTIONS": "x"}, "not a table written as JSON"),
        ({"NANOLOOP_AGENTS__COOK__TOOLS__X": "x"}, "no such setting"),
    ],
)
def test_what_is_wrong_in_the_environment_is_told_with_its_name(refusal, env, line):
    assert any(line in told for told in refusal(env=env))


def test_a_setting_that_is_gone_says_what_to_do_instead_with_its_line(refusal):
    told = refusal("[bus]\ninbound_limit = 5\n\n[loop]\nshutdown_summaries_seconds = 3\n")
    assert told == [
        f"2: bus.inbound_limit is no longer a setting: {instead('bus.inbound_limit')}",
        "5: loop.shutdown_summaries_seconds is no longer a setting: "
        + instead("loop.shutdown_summaries_seconds"),
    ]


@pytest.mark.parametrize(
    "name", [name for name in GONE if not is_gone(name.removeprefix("channels.").split(".")[0])]
)
def test_what_is_gone_is_refused_in_a_file_the_environment_and_code(refusal, name):
    key = name.replace("NAME", "cook")
    sentence = f"{key} is no longer a setting: {instead(name)}"
    assert refusal(f"{key} = 5") == [f"1: {sentence}"]
    assert refusal(env={variable(key): "5"}) == [f"env {variable(key)}: {sentence}"]
    given = 5
    for part in reversed(key.split(".")):
        given = {part: given}
    with pytest.raises(SettingsError, match=re.escape(sentence)):
        Settings(**given)


def test_what_is_gone_is_no_setting_and_is_named_in_the_changelog():
    changelog = (ROOT / "docs" / "changelog.md").read_text()
    for key in GONE:
        assert f"| `{key}` | {instead(key)} |" in changelog
    assert not GONE.keys() & {key for key, _ in known_settings(Settings)}


def test_an_empty_table_of_settings_that_are_gone_is_nothing(load):
    load("[bus]\n#inbound_limit = 1000\n")


def test_all_problems_are_told_at_once_one_a_line(refusal):
    told = refusal("model = 5\nmessage_buffer_min = 60\n", env={"NANOLOOP_MODLE": "x"})
    assert len(told) == 3


@pytest.mark.parametrize(
    ("text", "env"),
    [
        ("api_key = 12345678", {}),
        ('api_kee = "12345678"', {}),
        ('my_token = "12345678"', {}),
        ('xyzzy = "sk-12345678"', {}),
        ('[telegram]\ntoken = "12345678"', {}),
        ("", {"NANOLOOP_APIKEY": "12345678"}),
        ("", {"NANOLOOP_BASE_URL": "ftp://me:12345678@host"}),
    ],
)
def test_no_refusal_tells_a_secret(refusal, text, env):
    assert "12345678" not in "\n".join(refusal(text, env=env))


def test_a_secret_is_not_in_the_settings_text(load):
    assert "12345678" not in repr(load(env={"OPENAI_API_KEY": "12345678"}))


def test_a_file_that_cannot_be_read_is_told(tmp_path):
    (tmp_path / "latin.toml").write_bytes(b"model = '\xe9'")
    for name, reason in (("none.toml", "No such file"), ("latin.toml", "UTF-8"), (".", "Is a dir")):
        with pytest.raises(SettingsError, match=reason):
            Settings.load(config=tmp_path / name, env={})


def test_what_kubernetes_says_of_a_service_is_no_setting(load):
    load(env={"NANOLOOP_SERVICE_HOST": "10.0.0.1", "NANOLOOP_PORT_80_TCP": "tcp://10.0.0.1:80"})


def test_settings_made_in_code_read_nothing_and_are_checked(monkeypatch):
    monkeypatch.setenv("NANOLOOP_MODEL", "env")
    assert Settings(turn={"max_steps": 3}).model != "env"
    with pytest.raises(SettingsError, match="lower it"):
        Settings(message_buffer_min=60)
    with pytest.raises(ValidationError) as caught:
        Settings(api_key=12345678)
    assert "12345678" not in str(caught.value)


def test_every_setting_has_a_meaning_and_every_number_a_unit():
    for key, field in known_settings(Settings):
        assert field.description, key
        assert (
            isinstance(field.default, bool | str | type(None))
            or field.metadata
            or (field.default_factory)
        ), key


@pytest.mark.parametrize("key", [key for key, _ in known_settings(Settings)])
def test_every_setting_can_be_given_by_the_environment(load, key):
    name = variable(key)
    try:
        load(env={name: "surely wrong"})
    except SettingsError as error:
        assert "no such setting" not in str(error)  # noqa: PT017 - most take no such text


def test_the_line_of_each_key_is_found_past_comments_and_long_values(tmp_path):
    file = tmp_path / "nanoloop.toml"
    file.write_text('# a\na = """\n[b]\nc = 1\n"""\n\n[b]\nc = [\n 1,\n]\n"d e" = 2\nf.g = 3\n')
    lines = read_file(file).lines
    assert lines == {"a": 2, "b": 7, "b.c": 8, "b.d e": 11, "b.f": 12, "b.f.g": 12}


@given(st.lists(st.sampled_from(["# x", "", "k{} = 1", 'k{} = """\na = 1\n"""', "[t{}]"])))
def test_every_key_stands_on_the_line_that_is_named(tmp_path_factory, parts):
    text = "\n".join(part.format(number) for number, part in enumerate(parts))
    file = tmp_path_factory.getbasetemp() / "nanoloop.toml"
    file.write_text(text)
    found = read_file(file)
    assert found.table == tomllib.loads(text)
    for key, line in found.lines.items():
        assert key.rpartition(".")[2] in text.splitlines()[line - 1]


def test_a_key_is_kept_as_a_secret(load):
    assert isinstance(load('api_key = "x"').api_key, SecretStr)


def test_what_is_wrong_in_one_table_or_source_hides_nothing_of_another(refusal):
    text = 'message_buffer_min = "x"\n[providers.groq]\napi_key = 5\n[providers.grok]\n'
    told = refusal(text, env={"NANOLOOP_MESSAGE_BUFFER_MIN": "few"})
    assert sorted(told) == [
        '1: message_buffer_min is "x", not a whole number',
        "3: providers.groq.api_key is ********, not a string",
        "4: providers.grok is not a provider: did you mean providers.groq?",
        'env NANOLOOP_MESSAGE_BUFFER_MIN: message_buffer_min is "few", not a whole number',
    ]


def test_a_variable_may_hold_a_whole_table_as_json(load):
    settings = load(env={"NANOLOOP_AGENTS__COOK": '{"prompt": "Hi", "max_steps": 3}'})
    assert (settings.agents["cook"].prompt, settings.agents["cook"].max_steps) == ("Hi", 3)
    assert str(settings.origin("agents.cook.prompt")) == "env NANOLOOP_AGENTS__COOK"
