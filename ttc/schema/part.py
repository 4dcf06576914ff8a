"""Answers that keep to a JSON schema or a grammar."""

HANDLES = {
    "answers": {
        "grammar": "ttc.schema.grammar:AnswerGrammar",
        "calls": "ttc.schema.calls:call_grammar",
        "json": "ttc.schema.asked:json_answer",
    }
}
