"""The repository that the metadata of a model names."""

import pytest

from bitnet.tokenizer.model_origin import repository_of

URL = "general.source.url"


@pytest.mark.parametrize(
    ("metadata", "repository"),
    [
        ({}, ""),
        ({"general.source.huggingface.repository": "org/name"}, "org/name"),
        ({URL: "https://huggingface.co/org/name"}, "org/name"),
        ({URL: "https://huggingface.co/org/name/"}, "org/name"),
        ({URL: "https://huggingface.co/org/name/tree/main"}, "org/name"),
        ({URL: "https://huggingface.co/org/name/blob/main/a.gguf?download=true"}, "org/name"),
        ({URL: "https://huggingface.co/org/name?a=b/c"}, "org/name"),
        ({URL: "https://huggingface.co/org/name#a/b"}, "org/name"),
        ({URL: "huggingface.co/org/name"}, "org/name"),
        ({URL: "https://huggingface.co/name"}, ""),
        ({URL: "https://huggingface.co"}, ""),
        ({URL: "http://["}, ""),
        ({URL: 7, "general.repo_url": "https://huggingface.co/org/other"}, "org/other"),
        ({URL: None}, ""),
    ],
)
def test_the_repository_is_the_first_two_parts_of_an_address(metadata, repository):
    assert repository_of(metadata) == repository
