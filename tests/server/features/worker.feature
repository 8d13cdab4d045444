Feature: A worker says what it does
  Whoever runs a pool of workers reads their events: what is loaded, what fails, what is answered.

  Scenario: A GGUF file brings its own tokenizer
    Given a model with an embedded tokenizer
    When the worker loads it
    Then it narrates these actions in order
      | actor            | action                            |
      | model-loader     | gguf_metadata_loaded              |
      | tokenizer-loader | gguf_tokenizer_extract_start      |
      | model-loader     | gguf_vocab_size_derived           |
      | tokenizer-loader | gguf_tokenizer_metadata_extracted |
      | tokenizer-loader | gguf_tokenizer_extracted          |
      | model-loader     | gguf_load_complete                |
      | device-manager   | device_init                       |
      | llm-worker-rbee  | model_load_success                |
    And "gguf_tokenizer_extracted" says "Extracted tokenizer from GGUF (64 tokens)"
    And "gguf_tokenizer_extracted" adds "Found the tokenizer inside the GGUF! 📝✨"
    And "gguf_load_complete" adds "GGUF model loaded successfully! Ready to generate! 🎉✨"
    And every event names the worker

  Scenario: A GGUF file without a tokenizer
    Given a model without a tokenizer
    When the worker loads it
    Then loading fails with exit code 19
    And it says "Missing tokenizer.ggml.tokens"
    And "model_load_failed" is an error of "llm-worker-rbee"
    And "model_load_failed" says "Model load failed: "

  Scenario: An architecture nobody knows
    Given a model of the architecture "rwkv7"
    When the worker loads it
    Then loading fails with exit code 20
    And "model_load_failed" says "rwkv7"

  Scenario: A damaged file
    Given a model whose last bytes are missing
    When the worker loads it
    Then loading fails with exit code 13
    And "model_load_failed" is an error of "llm-worker-rbee"

  Scenario: A prompt is continued
    Given a worker that serves a model with an embedded tokenizer
    When a client sends the prompt "ab" and asks for 10 tokens
    Then the answer has 10 tokens
    And "inference_start" and "inference_complete" name the request

  Scenario: A prompt that does not fit is refused and the next one is answered
    Given a worker that serves a model with an embedded tokenizer
    When a client sends a prompt of 200 characters
    Then the client is told "the context holds 64"
    When a client sends the prompt "ab" and asks for 3 tokens
    Then the answer has 3 tokens
