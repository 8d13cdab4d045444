"""The cache folder: list, verify and remove its files.

    <cache>/CACHEDIR.TAG                               marks the folder as a cache, and as ours
    <cache>/store/                                     every fetched file once: bitnet.store
    <cache>/tokenizers/<key>/tokenizer.json            a link into the store; key: llama3-128k ...
    <cache>/tokenizers/compiled/<sha256>.tok           memory-mapped form, rebuilt when missing
    <cache>/tokenizers/compiled/digests/               digests of tokenizer files, computed once
    <cache>/models/                                    links into the store, by the names of models
    <cache>/exact-heads/<hash of the head>.copy        copy of an output head, also rebuilt
    <cache>/measurements/<what>-<hash>.json            timings on this machine, also rebuilt

There is no index: the folder itself is the truth, and any file or folder in it may be deleted at
any time without losing anything but speed. Files outside these folders are never touched; links
are never followed.
"""
