"""Tools that a model calls, those of MCP servers among them."""

HANDLES = {
    "group": {"tools": "ttc.tools.base:Tools"},
    "tools": {
        "calculator": "ttc.tools.calculator:CalculatorTools",
        "mcp": "ttc.tools.mcp:McpTools",
    },
    "tool_use": {
        "chat": "ttc.tools.chat:ToolChat",
        "steps": "search.tools.answers:ToolAnswers",
        "opening": "search.tools.opening:opened",
    },
}
