"""`run.dry=true`: what a run would do, before any weights are loaded."""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf

from experiments.runs.build import make_tools, thinking_marks, tokenizer_of
from experiments.runs.data import LoadedTask
from experiments.runs.private import marked
from experiments.runs.summary import kind_line, kinds_of_errors
from ttc.errors import number_of
from ttc.parts import handler
from ttc.text.conversation import Conversation
from ttc.text.prompt import PromptTemplate
from ttc.text.thinking_switch import switched
from ttc.text.thoughts import Thoughts

SHOWN = 3


def describe(config: DictConfig, template: PromptTemplate, task: LoadedTask) -> str:
    """The resolved configuration, the first three prompts, and the rows that fail, by their
    kind of error. Prompts of a private data set are shown with run.show_questions=true alone."""
    tokenizer = tokenizer_of(config)
    thoughts = Thoughts.of(tokenizer, thinking_marks(config))
    mode = config.search.get("thinking", "auto")
    tools = make_tools(config)

    def asking(template: PromptTemplate) -> PromptTemplate:
        template, _ = switched(template, mode, tokenizer, thoughts)
        if tools is None:
            return template
        return handler("tool_use", "chat").of(tools, template, tokenizer).template

    parts = [OmegaConf.to_yaml(config, resolve=True).rstrip()]
    for problem in task.problems[:SHOWN]:
        talk = problem.messages
        its = asking(template if talk is None else Conversation.of(talk, template))
        text = its.text(problem.question, tokenizer)
        tokens = len(its.tokens(problem.question, tokenizer))
        gold = problem.answer
        if config.dataset.private and not config.run.show_questions:
            gold = marked(gold)
            text = "(not to be published: run.show_questions=true shows it)"
        parts.append(
            f"--- prompt of {problem.id}, {number_of(tokens, 'token')}, gold answer "
            f"{gold} ---\n{text}"
        )
    parts.append(
        f"--- {number_of(len(task.problems), 'problem')}, "
        f"{number_of(len(task.failures), 'row')} that cannot be used ---"
    )
    names = {" ".join(reason.split()): name for name, reason in reversed(task.failures)}
    kinds = kinds_of_errors([reason for _, reason in task.failures])
    parts += [f"{names[kind['reason']]}: {kind_line(kind)}" for kind in kinds[:SHOWN]]
    return "\n\n".join(parts)
