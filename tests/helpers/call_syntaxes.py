"""Chat templates that write calls of tools, each in a syntax of real ones."""

from __future__ import annotations

ASKING = (
    "{% if tools %}<sys>{% for t in tools %}{{ t | tojson }}{% endfor %}</sys>{% endif %}"
    "{% for m in messages %}{% if m.role == 'user' %}<user>{{ m.content }}<end>\n"
    "{% elif m.role == 'tool' %}<result>{{ m.content }}<end>\n"
    "{% elif m.role == 'assistant' %}<model>\n{{ m.content }}CALLS<end>\n{% else %}"
    "{{ raise_exception('no role ' + m.role) }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<model>\n{% endif %}"
)
EACH = "{% for c in m.tool_calls or [] %}{% set f = c.function %}"
PAIRS = "{% for k, v in f.arguments | items %}"
RAW = "{% if v is string %}{{ v }}{% else %}{{ v | tojson }}{% endif %}"
ALL = "{% endfor %}{% endfor %}"

CALLS = {
    "json": EACH
    + '\n<tool_call>\n{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}'
    + "\n</tool_call>{% endfor %}",
    "json in a list": "{% if m.tool_calls %}<calls>[{% for c in m.tool_calls %}"
    + '{{ {"tool": c.function.name, "with": c.function.arguments, "id": c.id} | tojson }}'
    + "{% if not loop.last %}, {% endif %}{% endfor %}]</calls>{% endif %}",
    "json, one a line": "{% if m.tool_calls %}<calls>{% for c in m.tool_calls %}\n"
    + '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
    + "{% endfor %}\n</calls>{% endif %}",
    "names as keys": "{% if m.tool_calls %}[CALLS][{% for c in m.tool_calls %}"
    + "{{ {c.function.name: c.function.arguments} | tojson }}"
    + "{% if not loop.last %}, {% endif %}{% endfor %}]{% endif %}",
    "a name, then json": EACH
    + "[CALL]{{ f.name }}[ID]{{ c.id }}[ARGS]{{ f.arguments | tojson }}{% endfor %}",
    "a section with ids": "{% if m.tool_calls %}<|calls_begin|>{% for c in m.tool_calls %}"
    + "<|call_begin|>functions.{{ c.function.name }}:{{ loop.index0 }}<|args|>"
    + "{{ c.function.arguments | tojson }}<|call_end|>{% endfor %}<|calls_end|>{% endif %}",
    "an id before the name": "{% if m.tool_calls %}<|calls|>{% for c in m.tool_calls %}"
    + "<|begin|>{{ c.id }}<|name|>{{ c.function.name }}<|args|>"
    + "{{ c.function.arguments | tojson }}<|end|>{% endfor %}{% endif %}",
    "arguments as text": EACH + "<call>{{ f.name + '\n' + f.arguments }}</call>{% endfor %}",
    "elements": EACH
    + "<tool_call>\n<function={{ f.name }}>\n"
    + PAIRS
    + "<parameter={{ k }}>\n"
    + RAW
    + "\n</parameter>\n{% endfor %}</function>\n</tool_call>{% endfor %}",
    "keys and values": EACH
    + "<tool_call>{{ f.name }}\n"
    + PAIRS
    + "<arg_key>{{ k }}</arg_key>\n<arg_value>"
    + RAW
    + "</arg_value>\n{% endfor %}</tool_call>\n{% endfor %}",
    "elements with a type": "{% if m.tool_calls %}<|x|calls>\n"
    + EACH
    + '<|x|invoke name="{{ f.name }}">\n'
    + PAIRS
    + '<|x|parameter name="{{ k }}" string="{{ "true" if v is string else "false" }}">'
    + RAW
    + "</|x|parameter>\n{% endfor %}</|x|invoke>\n{% endfor %}</|x|calls>{% endif %}",
    "names as elements": EACH
    + '<invoke name="{{ f.name }}">'
    + PAIRS
    + "<{{ k }}>"
    + RAW
    + "</{{ k }}>{% endfor %}</invoke>\n{% endfor %}",
    "names as elements behind an element": EACH
    + "<use><tool>{{ f.name }}</tool>"
    + PAIRS
    + "<{{ k }}>"
    + RAW
    + "</{{ k }}>{% endfor %}</use>\n{% endfor %}",
    "lines of JSON": EACH
    + "\n```call\nname: {{ f.name }}\nargs:\n"
    + PAIRS
    + "  {{ k }}: {{ v | tojson }}\n{% endfor %}```{% endfor %}",
    "attributes": EACH
    + '<invoke name="{{ f.name }}"'
    + PAIRS
    + " {{ k }}={{ v | tojson }}{% endfor %}/>{% endfor %}",
    "keys of Lisp": EACH
    + "((call {{ f.name }}"
    + PAIRS
    + " :{{ k }} {{ v | tojson }}{% endfor %})){% endfor %}",
    "python in a fence": EACH
    + "```tool_code\n{{ f.name }}("
    + PAIRS
    + "{{ k }}={{ v | tojson }}{% if not loop.last %}, {% endif %}{% endfor %})\n```{% endfor %}",
    "python": "{% if m.tool_calls %}<|call_start|>["
    + EACH
    + "{{ f.name }}("
    + PAIRS
    + "{{ k }}={{ v | string if v is not string else v | tojson }}"
    + "{% if not loop.last %}, {% endif %}{% endfor %})"
    + "{% if not loop.last %}, {% endif %}{% endfor %}]<|call_end|>{% endif %}",
    "bare keys": EACH
    + "<|call>call:{{ f.name }}{{ '{' }}"
    + PAIRS
    + "{{ k }}:{% if v is string %}<q>{{ v }}<q>{% else %}{{ v | tojson | replace('\"', '<q>') }}"
    + "{% endif %}{% if not loop.last %},{% endif %}{% endfor %}{{ '}' }}<call|>{% endfor %}",
    "names in a header": EACH
    + "<|start|>assistant to={{ f.name }}<|message|>{{ f.arguments | tojson }}<|call|>{% endfor %}",
    "actions": EACH
    + "Action: {{ f.name }}\nAction Input: {{ f.arguments | tojson }}\n{% endfor %}",
    "flat json": EACH
    + '<call>{"tool": "{{ f.name }}"'
    + PAIRS
    + ", {{ k | tojson }}: {{ v | tojson }}{% endfor %}}</call>{% endfor %}",
    "a function in json": EACH
    + '<call>{"type": "function", "function": '
    + '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}}</call>{% endfor %}',
    "json in json": EACH
    + '<call>{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson | tojson }}}</call>'
    + "{% endfor %}",
    "json in a fence": EACH
    + '```json\n{"tool": "{{ f.name }}", "input": {{ f.arguments | tojson }}}\n```{% endfor %}',
    "assignments": EACH
    + "<call>{{ f.name }}: "
    + PAIRS
    + "{{ k }} = {{ v | tojson }}; {% endfor %}</call>{% endfor %}",
    "ids and attributes": EACH
    + '<call id="{{ c.id }}" name="{{ f.name }}">'
    + PAIRS
    + '<arg name="{{ k }}" value={{ v | tojson }}/>{% endfor %}</call>{% endfor %}',
    "signs of its own": EACH
    + "◁call▷{{ f.name }}◁args▷{{ f.arguments | tojson }}◁/call▷{% endfor %}",
}
"""What real templates write, in templates that are written for these tests."""

STRIPPED = (
    "elements",
    "keys and values",
    "names as elements",
    "names as elements behind an element",
    "elements with a type",
)
"""In which blanks beside a mark belong to it."""
