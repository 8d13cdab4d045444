"""Ids that end an answer: declared ones, and special tokens of known names."""

from bitnet.tokenizer.spec import stop_ids


def test_declared_ids_and_those_of_known_names_end_an_answer():
    special = {"<|eot_id|>": 9, "<|end_of_text|>": 1, "<|begin_of_text|>": 0}
    assert stop_ids(special, [1, None, 5]) == {1, 5, 9}


def test_harmony_does_not_stop_at_the_end_of_a_message():
    special = {"<|return|>": 2, "<|call|>": 3, "<|end|>": 4}
    assert stop_ids(special, []) == {2, 3}
    assert stop_ids(special, [4]) == {2, 3, 4}


def test_solar_does_not_stop_at_the_end_of_a_message():
    assert stop_ids({"<|flush|>": 2, "<|calls|>": 3, "<|end|>": 4}, []) == {2, 3}


def test_phi3_stops_at_the_token_end():
    assert stop_ids({"<|end|>": 7, "<|user|>": 8}, []) == {7}


def test_a_closing_tag_among_html_tags_does_not_end_an_answer():
    # Beside <table>, </s> is a tag of HTML.
    assert stop_ids({"<eos>": 1, "</s>": 9, "<table>": 8}, []) == {1}
    assert stop_ids({"</s>": 2, "<s>": 1}, []) == {2}


def test_without_declared_ids_and_known_names_no_id_ends_an_answer():
    assert stop_ids({}, [None]) == frozenset()
