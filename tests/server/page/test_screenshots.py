"""The pictures of the page in the documentation; ``inv screenshots`` writes them again."""

import os
from pathlib import Path

import pytest
from server_process import listening

FOLDER = os.environ.get("BITNET_TEST_SCREENSHOTS")
IMAGES = Path(__file__).parents[3] / "docs" / "images"
SIZES = {"desktop": {"width": 1000, "height": 640}, "phone": {"width": 390, "height": 720}}
LIMIT = 150_000  # bytes of a picture
# Questions, and the most tokens of each answer, as typed into the form. The pictures show the last,
# whose answer is right and ends by itself.
TALKS = {
    "Why is the sky blue?": "60",
    "What are the three primary colors?": "60",
    "List the first three planets of the solar system.": "60",
}


@pytest.mark.skipif(not FOLDER, reason="BITNET_TEST_SCREENSHOTS names no folder to write to")
def test_write_the_pictures_of_the_documentation(test_models, person):
    model = test_models / "SmolLM2-135M-Instruct.Q4_1.gguf"
    with listening(model, name="smollm2-135m", max_output_tokens=256) as worker:
        person.page.set_viewport_size(SIZES["desktop"])
        person.goes_to(worker.address)
        for question, tokens in TALKS.items():
            person.button("New chat").click()
            person.sets(Tokens_at_most=tokens, Temperature="0")
            person.says(question)
            person.expect(person.answers).not_to_be_empty()
        for device, size in SIZES.items():
            person.page.set_viewport_size(size)
            for scheme in ("light", "dark"):
                person.page.emulate_media(color_scheme=scheme)
                person.page.locator("#talk").evaluate("(talk) => { talk.scrollTop = 0; }")
                person.expect(person.page.locator("#latest")).to_be_attached()
                person.page.screenshot(path=Path(FOLDER) / f"chat-{device}-{scheme}.png")


def test_the_pictures_exist_are_small_and_stand_on_the_page_about_serving():
    guide = (IMAGES.parent / "how-to" / "serve.md").read_text("utf-8")
    for device in SIZES:
        for scheme in ("light", "dark"):
            path = IMAGES / f"chat-{device}-{scheme}.png"
            assert path.stat().st_size < LIMIT
            assert f"../images/{path.name}" in guide
