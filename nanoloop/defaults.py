"""What holds where nobody says otherwise, in the settings and in code alike."""

MESSAGE_BUFFER_LIMIT = 50
MESSAGE_BUFFER_MIN = 10
MAX_CONCURRENT_TURNS = 512
SHUTDOWN_TURNS_SECONDS = 20
MAX_STEPS = 20
TOOL_TIMEOUT_SECONDS = 60
STORE_TIMEOUT_SECONDS = 10
UPLOADS_BYTES = 1_000_000_000
SUMMARY_TIMEOUT_SECONDS = 60
NODE_SECONDS = 6.0
"""So long a process lives that has not been heard of: three beats."""

FIRST_TOKEN_TIMEOUT_SECONDS = 60
CALL_TIMEOUT_SECONDS = 300
MAX_RETRIES = 2

LOCAL_CALL_TIMEOUT_SECONDS = 900
"""An answer may have to wait for others first."""
LOCAL_CONTEXT_TOKENS = 8192
"""What a conversation with a file gets that the catalogue does not know."""
LOCAL_ANSWER_TOKENS = 1024
