"""Drafts of n-grams in a server of two ranks, which must propose the same."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

from running_server import RunningServer
from seeded_streams import FLAGS, SEEDS, all_streams, body


def test_streams_are_those_without_drafts_and_the_books_tell_of_them(
    folder: Path, wanted: dict[int, list[int]], tmp_path: Path
) -> None:
    flags = "--speculative-algorithm NGRAM --speculative-fixed-width --tp-size 2"
    with RunningServer(
        *("--model-path", str(folder), *FLAGS, *flags.split()),
        *("--enable-metrics", "--speculative-ngram-match-type", "PROB"),
        environment={"VIVACE_COMPARE_RANKS": "1"},
        log=tmp_path / "log",
    ) as server:
        server.wait_ready()
        assert all_streams(server) == wanted
        seed = 1
        meta = server.json("/generate", body(seed))["meta_info"]
        assert meta["spec_verify_ct"] < meta["completion_tokens"] == len(wanted[seed])
        assert meta["spec_accept_length"] > 1 and 0 < meta["spec_accept_rate"] <= 1
        assert meta["spec_accept_token_num"] <= meta["spec_draft_token_num"]
        (state,) = server.json("/server_info")["internal_states"]
        assert state["avg_spec_accept_length"] > 1
        assert sum(state["spec_draft_widths"].values()) > len(SEEDS)
        assert all(worker["draft_bytes"] > 10_000 for worker in state["workers"])
        status, page = server.call("GET", "/metrics")
        found = re.search(rb"^sglang:spec_accept_length\{.*\} (\S+)$", page, re.MULTILINE)
        assert status == 200 and found and float(found[1]) > 1
        assert "accept len" in server.text()
        corpus = {"corpus_id": "a", "token_chunks": [[token, 9] for token in range(300)]}
        drafts = []
        for salt in ("one", "another"):  # no text but the corpus has the first token
            asked = body(seed, 3, prompt=[280, 281, 282], cache_salt=salt)
            drafts.append(server.json("/generate", asked)["meta_info"].get("spec_draft_token_num"))
            if salt == "one":
                assert server.json("/add_external_corpus", corpus)["loaded_token_count"] == 600
        assert drafts == [None, 1]
        listed = server.json("/list_external_corpora")["corpus_token_counts"]
        assert listed == {"a": 600}
        for refused in (corpus, {"token_chunks": [[300]]}):  # twice; an unknown id
            status, answer = server.call("POST", "/add_external_corpus", refused)
            assert status == 400 and b"not added" in answer
        before = server.children()["engine"]
        os.kill(before, signal.SIGKILL)
        asked = body(seed, 3, prompt=[280, 281, 282], cache_salt="third")
        server.json("/generate", asked)  # it may be there before the corpus
        asked["cache_salt"] = "fourth"
        meta = server.json("/generate", asked)["meta_info"]
        assert server.children()["engine"] != before and meta["spec_draft_token_num"] == 1
        server.json("/remove_external_corpus", {"corpus_id": "a"})
        asked["cache_salt"] = "fifth"
        assert "spec_draft_token_num" not in server.json("/generate", asked)["meta_info"]
        server.call("POST", "/flush_cache", {})
        (state,) = server.json("/server_info")["internal_states"]
        assert not state.get("avg_spec_accept_length")
