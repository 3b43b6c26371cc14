# SPDX-License-Identifier: Apache-2.0
"""Writes golden.json: what transformers renders of small templates, each for one part of the language.

    python3 internal/jinja/testdata/golden.py > internal/jinja/testdata/golden.json
"""
import json

import transformers
from transformers.utils.chat_template_utils import _compile_jinja_template, _render_with_assistant_indices

VARS = {"text": "  Hello 'World' \"x\" é👍\n", "n": 7, "f": 2.5, "on": True, "none": None, "empty": "", "list": [3, 1, 2],
        "words": ["b", "A", "c"], "map": {"z": 1, "a": [1, {"k": "v"}], "get": "key", "x y": None},
        "rows": [{"role": "user", "n": 1, "in": {"k": "p"}}, {"role": "tool", "n": 2, "in": {"k": "q"}},
                 {"role": "user", "n": 3, "in": {"k": "r"}}]}
TEMPLATES = [
    "a\n  {% if on %}\n  b\n  {% endif %}\nc\n", "a {%- if on -%} b {%- endif %} c", "a\n  {%+ if on +%}\n b{% endif %}\n",
    "{# gone #}\nx  {#- gone -#}  y\n   {# z #}\nq", "{{ text }}|{{- text -}} |\n {{ n }}\n\n", "a\n\n", "x\r\ny\rz",
    "{% raw %}{{ x }}{% if %}{% endraw %}!", "  {% set a = 1 %}\n{{ a }}", "{% for i in list %}\n{{ i }}\n{% endfor %}\n",
    "{{ none }} {{ on }} {{ f }} {{ 1.0 }} {{ 1e3 if false else 10.0 ** 20 }} {{ missing }} {{ map }} {{ list }}",
    "{{ ['a', \"it's\", 'q\"', 'é', '\\n\\t', 1.5, none, true, {'k': []}] }}", "{{ 0.1 + 0.2 }} {{ 1e16 * 1.0 if false }}",
    "{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 1 - 2 - 3 }} {{ 2 + 3 * 4 }}",
    "{{ 'a' ~ 1 ~ none ~ true }} {{ 'ab' * 3 }} {{ [1] * 2 }} {{ 'a' + 'b' }} {{ [1] + [2] }} {{ '%s-%03d-%.2f' % ('x', 5, 1.239) }}",
    "{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 'a' in 'abc' }} {{ 'k' not in map }} {{ 'z' in map }} {{ 3 in list }} {{ 1 == 1.0 }} {{ true == 1 }}",
    "{{ 1 if on }} {{ 1 if not on }} {{ 1 if empty else 2 }} {{ on and n }} {{ empty or n }} {{ not empty }} {{ 'x' if on and not empty or none }}",
    "{{ text[2:5] }} {{ text[-3:] }} {{ text[::-1] }} {{ list[1:] }} {{ list[::-1] }} {{ list[-1] }} {{ list[:-1] }} {{ text[2] }} {{ list[9] is defined }}",
    "{{ map.z }} {{ map['a'][1].k }} {{ map.get('z') }} {{ map['get'] }} {{ map.get('no', 5) }} {{ map.no is defined }} {{ none.x is defined }} {{ map['x y'] is none }}",
    "{% for k, v in map.items() %}{{ k }}={{ v }};{% endfor %} {% for k in map %}{{ k }},{% endfor %} {{ map.keys() | list }} {{ map.values() | list }}",
    "{% for x in list %}{{ loop.index }}/{{ loop.length }} {{ loop.first }} {{ loop.last }} {{ loop.revindex0 }} {{ loop.previtem }} {{ loop.nextitem }};{% else %}none{% endfor %}",
    "{% for x in [] %}x{% else %}none{% endfor %} {% for x in list if x > 1 %}{{ loop.index }}:{{ x }} {% endfor %}",
    "{% for x in list %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %} {% for x in list %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% set ns = namespace(a=1, b='x') %}{% for x in list %}{% set ns.a = ns.a + x %}{% set y = x %}{% endfor %}{{ ns.a }} {{ y is defined }}",
    "{% set x, y = 1, 2 %}{{ x }}{{ y }} {% set z %}a{{ x }}{% endset %}{{ z | upper }} {% set w | upper %}abc{% endset %}{{ w }}",
    "{% macro m(a, b=2, c='x') %}{{ a }}{{ b }}{{ c }}{% if a > 0 %}{{ m(a - 1, c='y') }}{% endif %}{% endmacro %}{{ m(2) }}|{{ m(0, 5) | length }}",
    "{% for i in list recursive %}{% endfor %}" if False else "{{ range(3) | list }} {{ range(1, 6, 2) | list }} {{ range(3, 0, -1) | list }}",
    "{{ map | tojson }} {{ map | tojson(indent=2) }} {{ text | tojson }} {{ 'é<>&' | tojson }} {{ [] | tojson }} {{ {} | tojson(indent=4) }} {{ 1.0 | tojson }}",
    "{{ map | tojson(separators=(',', ':')) }} {{ map | tojson(sort_keys=true) }} {{ 'é👍' | tojson(ensure_ascii=true) }}",
    "{{ text | trim }} {{ text.strip() }} {{ 'xxaxx'.strip('x') }} {{ 'xxa'.lstrip('x') }} {{ 'axx'.rstrip('x') }} {{ '--a' | trim('-') }}",
    "{{ 'a,b,,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ 'a b c'.split(none, 1) }} {{ 'x</think>y'.split('</think>')[-1] }}",
    "{{ text.startswith('  H') }} {{ 'abc'.endswith('bc') }} {{ 'abc'.startswith(('x', 'a')) }} {{ 'a-b'.replace('-', '+') }} {{ 'aaa'.replace('a', 'b', 2) }} {{ 'aXb'.lower() }} {{ 'ß'.upper() }}",
    "{{ 'hello wORLD'.title() }} {{ 'hello World' | capitalize }} {{ 'ab' | length }} {{ 'é👍' | length }} {{ 'abcb'.find('b') }} {{ 'abcb'.count('b') }} {{ 'a\\nb'.splitlines() }}",
    "{{ list | sort }} {{ words | sort }} {{ words | sort(case_sensitive=true) }} {{ rows | map(attribute='n') | sort(reverse=true) }} {{ list | sum }} {{ list | max }} {{ list | min }}",
    "{{ rows | selectattr('role', 'equalto', 'user') | map(attribute='n') | list }} {{ rows | rejectattr('role', 'eq', 'user') | list }} {{ rows | map(attribute='in.k') | join('+') }}",
    "{{ list | select('odd') | list }} {{ list | reject('>', 1) | list }} {{ words | map('upper') | join(',') }} {{ rows | selectattr('in') | list | length }} {{ [1, 1, 2] | unique | list }}",
    "{{ missing | default('d') }} {{ empty | default('d') }} {{ empty | default('d', true) }} {{ none | d('x', boolean=true) }} {{ list | first }} {{ list | last }} {{ list | reverse | list }}",
    "{{ '5' | int + 1 }} {{ 'x' | int }} {{ '2.5' | float }} {{ 3.7 | int }} {{ -3 | abs }} {{ 2.567 | round(2) }} {{ 7 | string ~ 'x' }} {{ 'a' | list }} {{ map | dictsort }}",
    "{{ 'a\\nb\\n\\nc' | indent }} {{ 'a\\nb' | indent(2, true) }} {{ '<a>' | e }} {{ map | items | list }} {{ 'a' | safe }} {{ '%s!' | format('x') }}",
    "{{ n is number }} {{ n is integer }} {{ f is float }} {{ on is boolean }} {{ text is string }} {{ map is mapping }} {{ list is sequence }} {{ map is iterable }} {{ n is odd }} {{ 4 is even }} {{ 6 is divisibleby 3 }} {{ none is none }} {{ on is true }} {{ n is not none }} {{ n is eq 7 }} {{ 3 is in list }} {{ range is callable }}",
    "{% generation %}A{{ n }}{% endgeneration %}b{% for x in list %}{% generation %}é{{ x }}{% endgeneration %}\n{% endfor %}",
    "{% filter upper %}ab{{ n }}c{% endfilter %} {{ {'a': 1, 'b': 2} }} {{ dict(b=1, a=2) }} {{ (1, 2)[0] }}",
    "{%- for m in rows %}\n    {%- if m.role == 'user' %}\n        {{- '<|' + m.role + '|>' + m.n | string }}\n    {%- elif m['role'] == \"tool\" %}\n        {{- 'T' }}\n    {%- endif %}\n{%- endfor %}\n{%- if on %}\n    {{- 'end' }}\n{%- endif %}\n",
    "{{ \"a\\\"b\" 'c' }} {{ '\\u00e9\\x41' }} {{ 'a\\\\n' }} {{ 1_000 }} {{ [1, 2,] }} {{ {'a': 1,}.a }}",
    "{{ raise_exception('no ' ~ n) }}", "{{ missing.x }}", "{{ 1 + 'a' }}", "{{ list.append(1) }}", "{{ none + 1 }}", "{% for x in n %}{% endfor %}",
    "{{ missing() }}", "{{ [1] | nosuch }}", "{% if %}", "{{ ", "{% for x in list %}", "{{ 'a }}", "{{ range(200000) | list | length }}",
]


def render(template):
    try:
        text, spans = _render_with_assistant_indices(_compile_jinja_template(template), VARS["rows"], None, None, False, **VARS)
        return {"template": template, "text": text,
                "spans": [[len(text[:a].encode()), len(text[:b].encode())] for a, b in spans] or None}
    except Exception as e:
        return {"template": template, "error": type(e).__name__}


print(json.dumps({"transformers": transformers.__version__, "vars": VARS, "cases": [render(t) for t in TEMPLATES]},
                 ensure_ascii=False, indent=1))
