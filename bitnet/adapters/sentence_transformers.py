"""A model of this package as a ``SentenceTransformer`` (https://sbert.net)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from sentence_transformers import SentenceTransformer

from bitnet.base.options import check_type
from bitnet.runtime.text_ids import text_ids

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bitnet.runtime.language_model import LanguageModel


def sentence_transformer(model: LanguageModel) -> SentenceTransformer:
    """*model* with its prompts, for ``encode``, ``similarity`` and all that takes such an object.

    It cannot be trained or saved: its weights are not torch's.
    """
    return SentenceTransformer(
        modules=[Embedding(model)],
        prompts=dict(model.prompts.texts),
        default_prompt_name=model.prompts.default or None,
        device="cpu",
    )


class Embedding(torch.nn.Module):
    """The only module: tokenizes, runs the model, pools and normalizes as the model says."""

    def __init__(self, model: LanguageModel) -> None:
        """Vectors of *model*, which the caller closes."""
        super().__init__()
        self.model = model
        limit = model.text_limit or model.context
        self.max_seq_length = min(limit, model.context)  # tokens; callers may change it

    def preprocess(
        self, inputs: Sequence[str], prompt: str | None = None, **_: Any
    ) -> dict[str, Any]:
        """Token ids of *inputs*, each after *prompt*; the end of a longer text is left out."""
        room = self.max_seq_length, self.model.context  # tokens; text_ids takes the smaller
        ids = []
        for text in inputs:
            check_type("inputs", text, "texts", str)
            ids.append(text_ids(self.model.tokenizer, text, prompt or "", room=room, truncate=True))
        return {"ids": ids}

    def forward(self, features: dict[str, Any], **_: Any) -> dict[str, Any]:
        """*features* with a vector for each of their texts."""
        vectors = torch.from_numpy(self.model.embed(features["ids"]))
        return features | {"sentence_embedding": vectors}

    def get_embedding_dimension(self) -> int:
        """Dimensions of a vector."""
        return self.model.config.vector_dim
