"""Errors that a user can mend, in a few words: what was given, what is wrong with it, and what to
give instead."""

from __future__ import annotations

import re
from errno import EDQUOT, ENOSPC
from pathlib import PurePosixPath

from hydra.errors import (
    HydraException,
    InstantiationException,
    MissingConfigException,
    OverrideParseException,
)
from omegaconf import OmegaConf
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    OmegaConfBaseException,
    ValidationError,
)

from experiments.cli.choices import unmarked
from experiments.cli.removed import removal, removed_setting
from ttc.checks import PLAIN, use_one_of
from ttc.errors import TTCError
from ttc.origin import at, error_text, origin, raised_by_user
from ttc.parts import missing_for

TYPES = {"Integer": int, "Float": float, "bool": bool, "String": str}
"""What OmegaConf calls the types of values."""


def explained(error: BaseException) -> str:
    """What to tell the user of an error, also of one in the user's own code; a fault of this
    project is raised again."""
    text = reason(error)
    if text is not None:
        return text
    source = error.__cause__ if isinstance(error, InstantiationException) else error
    if source is None or not raised_by_user(source):
        raise error
    return error_text(source)


def reason(error: BaseException | None) -> str | None:
    """What to tell the user of an error; None for a fault of this project."""
    if isinstance(error, TTCError):
        return f"{error}{at(origin(error))}"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}; give a file or folder that can be used"
    if isinstance(error, OSError) and error.errno in (ENOSPC, EDQUOT):  # a write names no file
        return f"{error.strerror}; make room, or have the output written to another folder"
    if isinstance(error, InstantiationException):
        # a setting that was added with +, and the class does not have
        if isinstance(error.__cause__, TypeError):
            return " ".join(str(error).splitlines()[:2])
        return reason(error.__cause__) or _unknown_class(error)
    if isinstance(error, MissingConfigException):
        return _unknown_choice(error)
    if isinstance(error, OverrideParseException):
        return (
            f"{error.override} cannot be read ({error.message.splitlines()[0]}); text with spaces, "
            "braces, commas or quotes needs quotes of its own inside those of the shell: "
            "'KEY=\"TEXT\"'"
        )
    if isinstance(error, HydraException):
        cause = error.__cause__
        if isinstance(cause, ConfigAttributeError | ConfigKeyError):
            return _unknown_setting(cause)
        override = str(error).strip().removeprefix("Error merging override ")
        if isinstance(cause, ValidationError) and (wrong := _wrong_type(override, cause)):
            return wrong
        return ": ".join(filter(None, (override, reason(cause))))
    if isinstance(error, OmegaConfBaseException):
        return str(error).splitlines()[0]
    return None


def _unknown_class(error: InstantiationException) -> str | None:
    """What to tell of a class within a part, as `verifier.inner._target_`, that cannot be
    imported."""
    located = re.match(r"Error (?:locating target|loading) '([^']*)'", str(error))
    if located is None:
        return None
    where = re.search(r"^full_key: (.*)$", str(error), re.MULTILINE)
    key = f"{where[1]}._target_" if where else "_target_"
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    return f"{key}={located[1]} cannot be imported: {cause}; give the dotted path of a class"


def _unknown_choice(error: MissingConfigException) -> str:
    listed = error.options or ()
    # those are classes
    choices = [name for name in listed if not name.endswith("schema") and "." not in name]
    if not choices:
        return str(error).splitlines()[0]
    path = PurePosixPath(error.missing_cfg_file or "")
    group, name = str(path.parent), path.name
    unknown = f"{group}={name} is unknown; {use_one_of(name, choices)}{unmarked(group, name)}"
    return removal(group, name) or missing_for(f"{group}={name}") or unknown


def _unknown_setting(error: ConfigAttributeError | ConfigKeyError) -> str:
    key = error.full_key or ""
    if gone := removed_setting(key):
        return gone
    node = error.parent_node
    if node is None or not OmegaConf.is_dict(node):
        return str(error).splitlines()[0]
    chosen = node.get("_target_")
    owner = chosen or key.rpartition(".")[0]
    names = [name for name in node if name not in ("_target_", "hydra")]
    if chosen and OmegaConf.is_interpolation(node, "_target_"):  # by another setting
        group = key.partition(".")[0]
        return (
            f"{key} cannot be set where {group}=auto chooses {owner}; name it beside it, as "
            f"{group}=NAME"
        )
    if names:
        named = use_one_of(key.rpartition(".")[2], names)
        return f"{key} is no setting{owner and f' of {owner}'}; {named}"
    if chosen:
        return f"{key} is no setting of {owner}, which has none"
    if "." in owner:  # of settings that are anyone's, as a task's
        return f"{key} is new there; add it with a plus, as +{key}=VALUE"
    return (  # of a choice without settings
        f"{key} is no setting of the chosen {owner}, which has none; choose another {owner} beside "
        "it"
    )


def _wrong_type(override: str, error: ValidationError) -> str | None:
    """The refusal of a value of another type, in the words of `ttc.checks`."""
    converted = r"Value '.*' of type '(?P<given>\w+)' could not be converted to (?P<right>\w+)"
    flag = r"Value '.*' is not a valid (?P<right>bool) \(type (?P<given>\w+)\)"
    match = re.match(converted, error.msg or "") or re.match(flag, error.msg or "")
    if match is None or (right := TYPES.get(match["right"])) is None:
        return None
    return f"{override} is of type {match['given']}; give {PLAIN[right]}"
