"""Environment variables: types, synonyms, precedence, secrets, and when they are read."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from bitnet.base import settings
from bitnet.base.errors import UsageError
from bitnet.hub.ref import parse

BOOLEANS = [setting for setting in settings.ALL if isinstance(setting.default, bool)]
# Switches with words; NO_COLOR is on with any text but the empty one (https://no-color.org).
WORDS = [setting for setting in BOOLEANS if setting is not settings.no_color]


def names(setting):
    """Name of *setting*, for the id of a case."""
    return setting.names[0]


@pytest.mark.parametrize("setting", settings.ALL, ids=names)
def test_a_setting_that_is_not_set_has_its_default(setting):
    assert setting() == setting.default


@pytest.mark.parametrize("setting", settings.ALL, ids=names)
def test_every_setting_says_what_it_is_for(setting):
    assert setting.help
    assert not setting.help.endswith(".")


@pytest.mark.parametrize("setting", WORDS, ids=names)
@pytest.mark.parametrize("text", ["1", "true", "YES", "on", " On "])
def test_a_switch_is_on_for_every_word_of_consent(setting, text, monkeypatch):
    monkeypatch.setenv(setting.names[0], text)
    assert setting() is True


@pytest.mark.parametrize("setting", WORDS, ids=names)
@pytest.mark.parametrize("text", ["0", "false", "No", "off", ""])
def test_a_switch_is_off_for_every_word_of_refusal_and_the_empty_text(setting, text, monkeypatch):
    monkeypatch.setenv(setting.names[0], text)
    assert setting() is False


@pytest.mark.parametrize("setting", WORDS, ids=names)
def test_a_switch_set_to_something_else_is_an_error_that_names_it(setting, monkeypatch):
    monkeypatch.setenv(setting.names[0], "maybe")
    with pytest.raises(UsageError, match=f"{setting.names[0]} is 'maybe'"):
        setting()


@pytest.mark.parametrize(
    ("ours", "theirs", "offline"), [("0", "1", True), ("1", "0", True), ("0", "0", False)]
)
def test_either_offline_switch_is_enough(ours, theirs, offline, monkeypatch):
    monkeypatch.setenv("BITNET_OFFLINE", ours)
    monkeypatch.setenv("HF_HUB_OFFLINE", theirs)
    assert settings.offline() is offline


def test_the_first_name_that_is_set_wins(monkeypatch):
    monkeypatch.setenv("RAYON_NUM_THREADS", "8")
    assert settings.threads() == 8
    monkeypatch.setenv("BITNET_THREADS", "3")
    assert settings.threads() == 3


def test_a_value_is_read_at_each_call(monkeypatch):
    monkeypatch.setenv("BITNET_SEED", "1")
    first = settings.seed()
    monkeypatch.setenv("BITNET_SEED", "2")
    assert (first, settings.seed()) == (1, 2)


@pytest.mark.parametrize("text", ["-1", "1.5", "many"])
def test_a_count_is_a_whole_number_from_0(text, monkeypatch):
    monkeypatch.setenv("BITNET_SEED", text)
    with pytest.raises(UsageError, match=r"BITNET_SEED is .*: expected a whole number"):
        settings.seed()


@pytest.mark.parametrize("text", ["-1", "1.5", "many", "1025"])
def test_threads_are_a_whole_number_from_0_to_1024(text, monkeypatch):
    monkeypatch.setenv("BITNET_THREADS", text)
    with pytest.raises(UsageError, match=r"BITNET_THREADS is .*, 0 to 1024"):
        settings.threads()


@pytest.mark.parametrize("text", ["0", "-5", "inf", "nan", "soon"])
def test_seconds_are_a_positive_number(text, monkeypatch):
    monkeypatch.setenv("BITNET_DOWNLOAD_TIMEOUT", text)
    with pytest.raises(UsageError, match=r"BITNET_DOWNLOAD_TIMEOUT is .*: expected a positive"):
        settings.download_timeout()


def test_seconds_may_have_a_fraction(monkeypatch):
    monkeypatch.setenv("BITNET_DOWNLOAD_TIMEOUT", "0.5")
    assert settings.download_timeout() == 0.5


@pytest.mark.parametrize("text", ["", "   "])
def test_an_empty_token_is_not_a_token(text, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", text)
    assert settings.hf_token() is None


def test_the_endpoint_loses_its_last_slash(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.example/")
    assert settings.hf_endpoint() == "https://mirror.example"


def test_every_endpoint_loses_its_blanks_and_its_last_slash(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.example/ , https://b.example/x//")
    assert settings.hf_endpoint() == "https://hub.example,https://b.example/x"
    assert parse("https://hub.example/org/model").repo == "org/model"


@pytest.mark.parametrize("text", ["https://h:99999", "https://h:0", "https://[", "https://a,", "x"])
def test_an_endpoint_that_is_not_an_address_is_a_usage_error(text, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", text)
    with pytest.raises(UsageError, match="HF_ENDPOINT"):
        settings.hf_endpoint()


# Settings that are paths.
PATHS = [setting for setting in settings.ALL if setting.parse is settings.history.parse]


@pytest.mark.parametrize("setting", [*PATHS, settings.gguf], ids=names)
def test_a_home_folder_is_replaced_in_every_path(setting, monkeypatch):
    monkeypatch.setenv(setting.names[0], "~/x")
    assert Path(setting()) == Path.home() / "x"


@pytest.mark.parametrize("text", ["hf://org/model", "https://h/x.gguf", "smollm2-135m", "./x"])
def test_a_model_named_in_the_environment_stays_as_it_is_written(text, monkeypatch):
    monkeypatch.setenv("BITNET_GGUF", text)
    assert settings.gguf() == text


@pytest.mark.parametrize("text", ["2000", "many", "-1"])
def test_an_invalid_value_counts_as_unset_under_a_name_of_other_programs_only(text, monkeypatch):
    monkeypatch.setenv("RAYON_NUM_THREADS", text)
    assert settings.threads() == 0
    assert settings.as_set(settings.threads) is None
    monkeypatch.setenv("BITNET_THREADS", text)
    with pytest.raises(UsageError, match="BITNET_THREADS"):
        settings.threads()


@pytest.mark.parametrize("path", ["/dev/null", "/", "/dev/null/x", "x" * 300])
def test_a_token_file_that_cannot_be_read_counts_as_missing(path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN_PATH", path)
    assert settings.access_token() is None


def test_the_error_for_an_invalid_secret_does_not_show_it(monkeypatch):
    def refuse(text):
        raise ValueError("not valid")

    secret = settings.Setting("BITNET_TEST_ONLY", parse=refuse, default=None, help="x", secret=True)
    settings.ALL.remove(secret)  # it was added when it was made
    monkeypatch.setenv("BITNET_TEST_ONLY", "hush")
    with pytest.raises(UsageError) as caught:
        secret()
    assert "hush" not in caught.value.message + caught.value.hint


def test_values_are_shown_as_they_are_set_without_secrets_and_passwords(monkeypatch):
    assert settings.as_set(settings.seed) is None
    monkeypatch.setenv("BITNET_SEED", "7")
    monkeypatch.setenv("HF_TOKEN", "hush")
    assert settings.as_set(settings.seed) == ("BITNET_SEED", "'7'")
    monkeypatch.setenv("HF_ENDPOINT", "https://me:hush@mirror.example/x")
    assert settings.as_set(settings.hf_token) == ("HF_TOKEN", "(set, not shown)")
    shown = "'https://***@mirror.example/x'"
    assert settings.as_set(settings.hf_endpoint) == ("HF_ENDPOINT", shown)


def test_the_cache_folder_is_that_of_bitnet_then_of_xdg_then_of_the_home(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert settings.cache_dir() == Path.home() / ".cache/bitnet"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert settings.cache_dir() == Path.home() / ".cache/bitnet"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert settings.cache_dir() == tmp_path / "bitnet"
    monkeypatch.setenv("BITNET_CACHE_DIR", "~/mine")
    assert settings.cache_dir() == Path.home() / "mine"


@pytest.fixture
def homeless(monkeypatch):
    """A user without a home folder, as one of a container may be."""

    def nowhere(*_):
        raise RuntimeError("Could not determine home directory.")

    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    monkeypatch.setattr(Path, "expanduser", nowhere)


@pytest.mark.parametrize(
    ("file", "variable"),
    [(settings.presets_file, "BITNET_PRESETS"), (settings.history_file, "BITNET_HISTORY")],
)
def test_a_user_without_a_home_folder_has_only_the_files_that_are_named(
    file, variable, homeless, monkeypatch, tmp_path
):
    assert file() is None
    monkeypatch.setenv(variable, str(tmp_path / "file"))
    assert file() == tmp_path / "file"


def test_a_user_without_a_home_folder_is_told_what_to_set(homeless, monkeypatch, tmp_path):
    with pytest.raises(UsageError, match="no home folder") as caught:
        settings.cache_dir()
    assert "BITNET_CACHE_DIR" in caught.value.hint
    monkeypatch.setenv("BITNET_CACHE_DIR", str(tmp_path))
    assert settings.cache_dir() == tmp_path


@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_any_text_is_read_as_a_value_or_is_a_usage_error(monkeypatch, text):
    for setting in (settings.offline, settings.threads, settings.download_timeout):
        monkeypatch.setenv(setting.names[0], text)
        try:
            value = setting()
        except UsageError:
            continue
        assert isinstance(value, type(setting.default))
