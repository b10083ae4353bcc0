"""Fake providers of realtime sessions beside OpenAI's, which ``patchbay.testing.realtime`` has."""

from __future__ import annotations

from .gemini import FakeGemini as FakeGemini
from .older import FakeGLM as FakeGLM
from .older import FakeQwen as FakeQwen
from .older import FakeStepFun as FakeStepFun
