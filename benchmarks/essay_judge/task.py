"""What both versions share, so that neither counts it: the dimensions, the schema of the verdict, and an essay."""

from __future__ import annotations

DIMENSIONS = ["clarity", "originality", "evidence"]
VERDICT = {
    "type": "object",
    "properties": {"summary": {"type": "string", "maxLength": 200}, "grade": {"enum": ["A", "B", "C", "D"]}},
    "required": ["summary", "grade"],
    "additionalProperties": False,
}
TOPIC = "school gardens"
ESSAY = (
    "Every school should have a garden. A child who waters a bean learns patience. Numbers become real when the rows "
    "are measured. Some say that a garden costs too much, but seeds are cheap, and parents like to help. Our school "
    "gave forty bags of tomatoes to its neighbours last summer."
)
