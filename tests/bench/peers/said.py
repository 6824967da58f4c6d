"""What is said in the comparison: one prompt, one kind of question, one answer, for all."""

MODEL = "test-model"
PROMPT = "You are a friendly companion who answers in one sentence and never guesses."
SAID = "I went to the market this morning and bought apples, bread and two kinds of cheese."
ANSWERED = "That sounds like a good morning; did you also find the olives you were looking for?"
LIMIT, KEPT = 50, 10
"""Messages in the window at most, and after it was cut."""
MESSAGE_TOKENS = 24
"""What one message comes to, by the usual estimate of four characters a token and some beside."""


def said(number: int) -> str:
    """What the user says: never the same twice, or a request would look like the one before."""
    return f"{number}. {SAID}"
