"""What each release of SGLang takes: tables made from its source (tools/sglang_tables.py)."""
