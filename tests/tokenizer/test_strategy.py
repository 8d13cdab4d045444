"""Ways in which a model gets its tokenizer, as patterns of a ``match``."""

from pathlib import Path

from bitnet.tokenizer.strategy import TokenizerStrategy


def test_a_strategy_is_described_with_its_file_and_matched_by_its_class():
    path = Path("models/tokenizer.json")
    named = TokenizerStrategy.Exact(path)
    assert named.description() == f"user-specified tokenizer: {path}"
    assert TokenizerStrategy.Discovered(path) != named
    match named:
        case TokenizerStrategy.Discovered():
            raise AssertionError("a class of another way")
        case TokenizerStrategy.Exact(file):
            assert file is path
    assert "MOCK" in TokenizerStrategy.Mock().description()
