"""Defaults shared by the settings and the code."""

MESSAGE_BUFFER_LIMIT = 50
MESSAGE_BUFFER_MIN = 10
MAX_CONCURRENT_TURNS = 512
SHUTDOWN_TURNS_SECONDS = 20
MAX_STEPS = 20
TOOL_TIMEOUT_SECONDS = 60
TOOL_BUDGET_TOKENS = 8_000
STORE_TIMEOUT_SECONDS = 10
UPLOADS_BYTES = 1_000_000_000
STALL_SECONDS = 5
SUMMARY_TIMEOUT_SECONDS = 60
NODE_SECONDS = 6.0
"""How long a process without a heartbeat counts as alive: three heartbeat intervals."""

FIRST_TOKEN_TIMEOUT_SECONDS = 60
CALL_TIMEOUT_SECONDS = 300
MAX_RETRIES = 2

LOCAL_CALL_TIMEOUT_SECONDS = 900
"""A long time, because a local model finishes other answers first."""
LOCAL_CONTEXT_TOKENS = 8192
"""The context of a model file that is not in the catalogue."""
LOCAL_ANSWER_TOKENS = 1024
