"""The chat model of the examples: one that answers from a script, offline, or a real one if a key is set.

    OPENAI_API_KEY=... python examples/chat_memory.py         (or ANTHROPIC_API_KEY)

EVERSTEP_EXAMPLE_MODEL names another model, as `init_chat_model` of LangChain takes it: "openai:gpt-5-mini".
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult

Script = Callable[[list[BaseMessage]], str]
"""What to answer to a conversation."""

# The variable with the key, the model to use with it, and the package that knows it.
PROVIDERS = (
    ("OPENAI_API_KEY", "openai:gpt-5-mini", "langchain-openai"),
    ("ANTHROPIC_API_KEY", "anthropic:claude-haiku-4-5", "langchain-anthropic"),
)


class ScriptedModel(BaseChatModel):
    """A chat model that answers from a script: the same answer to the same conversation."""

    script: Script

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage(self.script(messages)))])


def chat_model(script: Script) -> BaseChatModel:
    """Return a real model if a key for one is set, else one that answers from `script`."""
    for key, name, package in PROVIDERS:
        if os.environ.get(key):
            try:
                models = importlib.import_module("langchain.chat_models")
                found: BaseChatModel = models.init_chat_model(os.environ.get("EVERSTEP_EXAMPLE_MODEL", name))
                return found
            except ImportError:
                hint = f"{key} is set: pip install langchain {package} to use it. Going on with the scripted model."
                print(hint, file=sys.stderr)
    return ScriptedModel(script=script)
