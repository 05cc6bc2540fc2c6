"""Chat templates that write the formats of public models, each in its own manner of Jinja."""

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

CHATML_WITHOUT_PROMPT = """{% for m in messages %}
{{ '<|im_start|>' ~ m.role ~ '\n' ~ m.content ~ '<|im_end|>' ~ '\n' }}
{%- endfor %}"""

LLAMA3 = """{{- bos_token }}
{%- for m in messages %}
    {{- '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' }}
    {%- if loop.first and m.role == 'system' %}{{- 'Today Date: ' + strftime_now('%Y') + '\n\n' }}{%- endif %}
    {{- m.content | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"""

GEMMA2 = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{% endif %}
{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}
{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"""

LLAMA2 = """{% if messages[0].role == 'system' %}
{% set rest = messages[1:] %}{% set system = messages[0].content %}
{% else %}{% set rest = messages %}{% set system = false %}{% endif %}
{% for m in rest %}
{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
{% set body = '<<SYS>>\n' + system + '\n<</SYS>>\n\n' + m.content if loop.first and system else m.content %}
{% if m.role == 'user' %}{{ bos_token + '[INST] ' + body + ' [/INST]' }}
{%- else %}{{ ' ' + body + ' ' + eos_token }}{% endif %}
{%- endfor %}"""

# The system message stands in the *last* user turn: an earlier text changes with every turn.
MISTRAL3 = """{% if messages[0].role == 'system' %}
{% set rest = messages[1:] %}{% set system = messages[0].content %}
{% else %}{% set rest = messages %}{% set system = none %}{% endif %}
{{ bos_token }}
{%- for m in rest %}
{% if m.role == 'user' %}
{% if loop.last and system %}{{ '[INST]' + system + '\n\n' + m.content + '[/INST]' }}
{%- else %}{{ '[INST]' + m.content + '[/INST]' }}{% endif %}
{%- elif m.role == 'assistant' %}{{ m.content + eos_token }}
{%- else %}{{ raise_exception('only user and assistant roles are supported') }}{% endif %}
{%- endfor %}"""

PHI3 = """{% for m in messages %}{% if m.role not in ['system', 'user', 'assistant'] %}{% continue %}{% endif %}
{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}
{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"""

DEEPSEEK = """{% set ns = namespace(system='') %}
{%- for m in messages %}{% if m.role == 'system' %}{% set ns.system = ns.system + m.content %}{% endif %}{% endfor %}
{{- bos_token }}{{ ns.system }}
{%- for m in messages %}
{%- if m.role == 'user' %}{{ '<｜User｜>' + m.content }}
{%- elif m.role == 'assistant' %}{% set answer = m.content.split('</think>')[-1] %}
{{- '<｜Assistant｜>' + answer + '<｜end▁of▁sentence｜>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif %}"""

# A last assistant turn shows an empty reasoning block that earlier turns do not have.
QWEN3 = """{%- for m in messages %}
{%- if m.role == 'assistant' and loop.last %}
{{- '<|im_start|>assistant\n<think>\n\n</think>\n\n' + m.content + '<|im_end|>\n' }}
{%- else %}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""

VICUNA = """{% set system = 'A chat between a user and an assistant. ' %}
{%- for m in messages %}
{%- if loop.first and m.role != 'system' %}{{ system }}{% endif %}
{%- if m.role == 'system' %}{{ m.content + ' ' }}
{%- elif m.role == 'user' %}{{ 'USER: ' + m.content + ' ' }}
{%- else %}{{ 'ASSISTANT: ' + m.content + eos_token }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ 'ASSISTANT: ' }}{% endif %}"""

# A last assistant turn ends with another token than earlier ones, which begins alike.
HARMONY = """{%- for m in messages %}
{{- '<|start|>' + m.role + ('<|channel|>final' if m.role == 'assistant' else '') + '<|message|>' + m.content }}
{{- '<|return|>' if m.role == 'assistant' and loop.last and not add_generation_prompt else '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{%- endif %}"""

IMAGE_PARTS = """{% for m in messages %}{{ m.role | capitalize ~ ':' }}
{%- for part in m.content %}
{%- if part.type == 'image' %}{{ '<image>' }}{% else %}{{ ' ' + part.text }}{% endif %}{% endfor %}
{{- '<end_of_utterance>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"""

TRAINING = """{% for m in messages %}{{ '<|' ~ m.role ~ '|>' }}
{%- if m.role == 'assistant' %}{% generation %}{{ m.content ~ '<|end|>' }}{% endgeneration %}
{%- else %}{{ m.content ~ '<|end|>' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""

VARIABLES = {"bos_token": "<s>", "eos_token": "</s>"}
MARKERS = (
    "<|start|>",
    "<|end|>",
    "<|return|>",
    "<|message|>",
    "<|channel|>",
    "<|im_start|>",
    "<|im_end|>",
    "<s>",
    "</s>",
)
