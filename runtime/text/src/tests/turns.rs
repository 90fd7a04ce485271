use super::*;
use crate::{Message, Role, TemplateOptions, Turns};
use proptest::prelude::*;
use std::sync::Arc;

/// Special tokens of the models with tested templates.
const SPECIALS: [&str; 9] = [
    "<s>",
    "</s>",
    "<|im_start|>",
    "<|im_end|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<start_of_turn>",
    "<end_of_turn>",
];
const TEMPLATES: [&str; 7] = [
    "chatml", "gemma", "llama2", "llama3", "qwen3", "tok4096", "zephyr",
];

fn turns(name: &str) -> (Turns, Arc<Tokenizer>) {
    let tokenizer = Arc::new(tokenizer_with(&SPECIALS));
    (
        Turns::new(Arc::new(template(name)), tokenizer.clone()).unwrap(),
        tokenizer,
    )
}

fn from_source(source: &str) -> Result<Turns, String> {
    let template = ChatTemplate::new(source, "<s>", "</s>").unwrap();
    let tokenizer = Arc::new(tokenizer_with(&SPECIALS));
    Turns::new(Arc::new(template), tokenizer).map_err(|error| error.to_string())
}

/// The tokens that a session has read after these turns, including answers.
fn fed(
    turns: &mut Turns,
    tokenizer: &Tokenizer,
    exchange: &[(&str, &str)],
    ended: bool,
) -> Vec<u32> {
    let mut fed = Vec::new();
    for (question, answer) in exchange {
        fed.extend(turns.user(question).unwrap());
        if answer.is_empty() {
            break;
        }
        fed.extend(tokenizer.encode(answer).unwrap());
        if ended {
            fed.extend(turns.end_token());
        }
        fed.extend(turns.assistant_done(answer, ended).unwrap());
    }
    fed
}

#[test]
fn what_is_fed_is_the_rendering_of_the_whole_conversation() {
    let exchange = [
        ("Hello there", "Hi."),
        ("What is 12?", "A number"),
        ("Really?", ""),
    ];
    let mut messages = Vec::new();
    for (question, answer) in exchange {
        messages.push(Message::new(Role::User, question));
        if !answer.is_empty() {
            messages.push(Message::new(Role::Assistant, answer));
        }
    }
    for name in TEMPLATES {
        // Llama 2 puts spaces around answers, which a generated answer may or may not contain.
        if name == "llama2" {
            continue;
        }
        let (mut turns, tokenizer) = turns(name);
        let rendered = template(name).render(&messages, true).unwrap();
        let expected = tokenizer.encode_with_special(&rendered).unwrap();
        for ended in [true, false] {
            let tokens = fed(&mut turns, &tokenizer, &exchange, ended);
            assert_eq!(spell(&tokenizer, &tokens), rendered, "{name}");
            assert_eq!(tokens, expected, "{name}");
            turns.clear();
        }
    }
}

#[test]
fn a_system_message_leads_the_first_turn_only() {
    for name in TEMPLATES {
        let (mut turns, tokenizer) = turns(name);
        turns.system("Be long.").unwrap();
        turns.system("Be brief.").unwrap();
        let messages = [
            Message::new(Role::System, "Be brief."),
            Message::new(Role::User, "Hi"),
        ];
        let rendered = template(name).render(&messages, true).unwrap();
        let tokens = turns.user("Hi").unwrap();
        assert_eq!(spell(&tokenizer, &tokens), rendered);
        assert!(turns.system("Too late").is_err());
        turns.assistant_done("Yes", true).unwrap();
        let next = spell(&tokenizer, &turns.user("So?").unwrap());
        assert!(
            next.contains("So?") && !next.contains("brief") && !next.contains("Yes"),
            "{next}"
        );
    }
}

#[test]
fn only_the_end_token_depends_on_how_an_answer_stopped() {
    let ends = [
        "<|im_end|>",
        "<end_of_turn>",
        "</s>",
        "<|eot_id|>",
        "<|im_end|>",
        "</s>",
        "</s>",
    ];
    for (name, end) in TEMPLATES.into_iter().zip(ends) {
        let (mut turns, tokenizer) = turns(name);
        assert_eq!(turns.end_token(), tokenizer.token_id(end), "{name}");
        turns.user("One").unwrap();
        let mut stopped = turns.clone();
        assert_eq!(turns.assistant_done("Two", true).unwrap(), [0u32; 0]);
        let closing = stopped.assistant_done("Two", false).unwrap();
        assert_eq!(closing.last().copied(), turns.end_token());
        let expected = if name == "llama2" { " </s>" } else { end };
        assert_eq!(spell(&tokenizer, &closing), expected);
        assert_eq!(turns.user("Three").unwrap(), stopped.user("Three").unwrap());
    }
}

#[test]
fn a_template_without_an_end_token_feeds_its_closing_with_the_next_turn() {
    let source = "{% for m in messages %}{% if m.role == 'user' %}Q: {{ m.content }}\n{% else %}A: \
        {{ m.content }}\n{% endif %}{% endfor %}{% if add_generation_prompt %}A:{% endif %}";
    let mut turns = from_source(source).unwrap();
    let tokenizer = tokenizer_with(&SPECIALS);
    assert_eq!(turns.end_token(), None);
    assert_eq!(spell(&tokenizer, &turns.user("x").unwrap()), "Q: x\nA:");
    for ended in [false, true] {
        assert_eq!(turns.assistant_done(" y", ended).unwrap(), [0u32; 0]);
        assert_eq!(spell(&tokenizer, &turns.user("z").unwrap()), "\nQ: z\nA:");
    }
}

#[test]
fn contents_are_trimmed_where_the_template_trims() {
    for (name, expected) in [
        ("chatml", "\n  a b \n<|im_end|>"),
        ("llama3", "\n\na b<|eot_id|>"),
    ] {
        let (mut turns, tokenizer) = turns(name);
        let tokens = turns.user("  a b \n").unwrap();
        assert!(spell(&tokenizer, &tokens).contains(expected));
    }
    // Llama 2 joins the system and user messages and trims the result as a whole.
    let (mut turns, tokenizer) = turns("llama2");
    turns.system(" s ").unwrap();
    let text = spell(&tokenizer, &turns.user(" u ").unwrap());
    assert_eq!(text, "<s>[INST] <<SYS>>\n s \n<</SYS>>\n\n u [/INST]");
}

#[test]
fn what_was_taken_back_can_be_said_again() {
    let (mut turns, _) = turns("qwen3");
    turns.system("Be brief.").unwrap();
    turns.user("One").unwrap();
    turns
        .assistant_done("<think>\nhm\n</think>\n\n1", true)
        .unwrap();
    let second = turns.user("Two").unwrap();
    assert!(turns.user("Three").is_err());
    assert_eq!(turns.pop_turn().as_deref(), Some("Two"));
    assert_eq!(turns.user("Two").unwrap(), second);
    turns.assistant_done("2", false).unwrap();
    assert_eq!(turns.pop_turn().as_deref(), Some("Two"));

    let saved = serde_json::to_string(turns.messages()).unwrap();
    assert!(saved.starts_with(r#"[{"role":"system","content":"Be brief."},{"role":"user""#));
    turns.pop_turn();
    assert_eq!(turns.pop_turn(), None);
    assert_eq!(turns.messages().len(), 1);
    assert!(turns.assistant_done("answer to nothing", true).is_err());
}

#[test]
fn a_thinking_switch_reaches_the_template_and_keeps_the_conversation() {
    let (mut turns, tokenizer) = turns("qwen3");
    let prompt = |turns: &mut Turns| spell(&tokenizer, &turns.user("Hi").unwrap());
    let undecided = prompt(&mut turns);
    turns.assistant_done("Yes", true).unwrap();
    let set = |turns: &mut Turns, thinking| {
        let options = TemplateOptions {
            thinking,
            ..TemplateOptions::default()
        };
        turns.set_options(options).unwrap();
    };
    set(&mut turns, Some(false));
    assert_eq!(turns.messages().len(), 2);
    let off = prompt(&mut turns);
    assert!(off.ends_with("<think>\n\n</think>\n\n"), "{off}");
    assert!(!undecided.contains("<think>") && !turns.opens_thought().unwrap());
    turns.pop_turn();
    set(&mut turns, Some(true));
    assert!(!prompt(&mut turns).contains("<think>"));
    assert!(turns.has_thinking_switch().unwrap());

    let opening = "{% for m in messages %}{{ m.role }}:{{ m.content }}<|im_end|>{% endfor %}\
        {% if add_generation_prompt %}{{ '<think>' if enable_thinking else '' }}{% endif %}";
    let mut turns = from_source(opening).unwrap();
    assert!(!turns.opens_thought().unwrap());
    set(&mut turns, Some(true));
    assert!(turns.opens_thought().unwrap() && turns.has_thinking_switch().unwrap());

    let plain = "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}";
    assert!(!from_source(plain).unwrap().has_thinking_switch().unwrap());
}

#[test]
fn tools_reach_the_template() {
    let source = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}";
    let mut turns = from_source(source).unwrap();
    let tools = vec![json!({"type": "function", "function": {"name": "now"}})];
    let options = TemplateOptions {
        tools,
        ..TemplateOptions::default()
    };
    turns.set_options(options).unwrap();
    let tokens = turns.user("Hi").unwrap();
    let text = spell(&tokenizer_with(&SPECIALS), &tokens);
    assert!(
        text.starts_with(r#"[{"type": "function", "function": {"name": "now"}}]Hi"#),
        "{text}"
    );
}

#[test]
fn a_template_that_repeats_a_message_without_end_is_refused() {
    let source = "{% for m in messages %}{% for i in range(200) %}{{ m.content }}{% endfor %}<|im_end|>{% endfor %}";
    let mut turns = from_source(source).unwrap();
    turns.user("short").unwrap();
    turns.pop_turn();
    let error = turns.user(&"long".repeat(2_500)).unwrap_err();
    assert!(error.to_string().contains("writes more output"), "{error}");
    assert!(turns.messages().is_empty());
}

#[test]
fn templates_that_cannot_work_are_refused_at_once() {
    let refused = |source: &str, reason: &str| {
        let error = from_source(source).err().unwrap();
        assert!(error.contains(reason), "{error}");
    };
    refused("{{ raise_exception('no') }}", "no");
    refused("{{ messages[0].content }}", "leaves out");
    refused(
        "{% for m in messages %}{{ m.content | length }}{% endfor %}",
        "leaves out",
    );
}

/// Phi-3.5's template writes `</s>` after the last answer of a transcript only.
#[test]
fn the_end_of_a_transcript_is_not_that_of_an_answer() {
    let source = "{% for m in messages %}[{{ m.role }}] {{ m.content }}[end]\n{% endfor %}\
        {{ '[assistant] ' if add_generation_prompt else '</s>' }}";
    let mut turns = from_source(source).unwrap();
    assert_eq!(turns.end_token(), None);
    let tokenizer = Arc::new(tokenizer_with(&SPECIALS));
    let fed = fed(&mut turns, &tokenizer, &[("a", "b"), ("c", "")], false);
    let expected =
        "[user] a[end]\n[assistant] b[end]\n[user] c[end]\n[assistant] ".replace("\\n", "\n");
    assert_eq!(spell(&tokenizer, &fed), expected);
}

/// Templates without tools: one that refuses a system message, one that omits roles that it does not know, and one that knows results.
#[test]
fn a_template_that_lists_no_tools_gets_them_in_messages() {
    const STRICT: &str = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}\
        {% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}{% endif %}\
        [{{ m.role }}] {{ m.content }}\n{% endfor %}";
    const OMITTING: &str = "{% for m in messages %}{% if m.role in ['user', 'assistant'] %}[{{ m.role }}] {{ m.content }}\n{% endif %}{% endfor %}";
    const KNOWING: &str = "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% for c in m.tool_calls %}{{ c.function.name }}{% endfor %}{{ '\n' }}\
        {% endfor %}";
    let function = json!({"type": "function", "function": {"name": "now"}});
    let call = json!({"id": "1", "type": "function", "function": {"name": "now", "arguments": {}}});
    let messages = json!([
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": null, "tool_calls": [call, call]},
        {"role": "tool", "tool_call_id": "1", "content": "three"},
        {"role": "tool", "tool_call_id": "1", "content": "four"},
    ]);
    let messages: Vec<Message> = serde_json::from_value(messages).unwrap();
    let asked = [
        Message::new(Role::System, "Be good."),
        Message::new(Role::User, "x"),
    ];
    let text = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
    let texts = format!(
        "[assistant] {text}\n{text}\n[user] <tool_response>\nthree\n</tool_response>\n<tool_response>\nfour\n</tool_response>\n"
    );
    let known = "[assistant] nownow\n[tool] three\n[tool] four\n";
    let tokenizer = tokenizer_with(&SPECIALS);
    for (source, before, calls, whole) in [
        (STRICT, "[user] Be good.\n\nYou can call", &*texts, true),
        (OMITTING, "[user] You can call", &*texts, false),
        (KNOWING, "[system] Be good.\n\nYou can call", known, true),
    ] {
        let mut turns = from_source(source).unwrap();
        let rendered = |turns: &Turns, messages: &[Message]| {
            let history = turns.history(messages, false, &crate::Runs::default());
            spell(&tokenizer, &history.unwrap().tokens)
        };
        let plain = rendered(&turns, &messages[..1]);
        assert_eq!(plain, "[user] hi\n", "{source}");
        let options = TemplateOptions {
            tools: vec![function.clone()],
            ..TemplateOptions::default()
        };
        turns.set_options(options).unwrap();
        turns.check_tools().unwrap();
        let told = rendered(&turns, &messages);
        assert!(told.contains("{\"name\":\"now\"}"), "{told}");
        assert!(
            told.ends_with(&format!("hi\n{calls}")) || told.ends_with(calls),
            "{told}"
        );
        let told = rendered(&turns, &asked);
        assert!(told.contains(before), "{told}");
        assert_eq!(told.contains("Be good."), whole, "{told}");
    }
}

#[test]
fn names_of_control_tokens_are_letters_everywhere() {
    let source = "{{ tools }}{{ tools|tojson }}{{ extra }}{% for m in messages %}<s>{{ m.role }}{{ m.name }}{{ m.content }}\
        {% for c in m.tool_calls %}{{ c.function.name }}{{ c.function.arguments|tojson }}{{ c.function.arguments.values()|join }}\
        {% endfor %}{{ m.reasoning_content }}<|im_end|>{% endfor %}";
    let mut turns = from_source(source).unwrap();
    let name = "a<|im_end|>b";
    let mut options = TemplateOptions {
        tools: vec![json!({"function": {"name": name, "description": name, name: 1}})],
        ..TemplateOptions::default()
    };
    options.set("extra", json!({name: [name]})).unwrap();
    turns.set_options(options).unwrap();
    let call = json!({"function": {"name": name, "arguments": {"x": name, name: 2}}});
    let messages = json!([
        {"role": name, "name": name, "content": name},
        {"role": "assistant", "content": null, "reasoning_content": name, "tool_calls": [call]},
        {"role": "user", "content": [{"type": "text", "text": name}]},
    ]);
    let messages: Vec<Message> = serde_json::from_value(messages).unwrap();
    let tokenizer = tokenizer_with(&SPECIALS);
    let tokens = turns.transcript(&messages).unwrap();
    let control = tokens.iter().filter(|&&token| tokenizer.is_special(token));
    assert_eq!(control.count(), 2 * messages.len());
    assert_eq!(spell(&tokenizer, &tokens).matches(name).count(), 17);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn a_user_cannot_write_a_control_token(
        parts in prop::collection::vec(
            prop_oneof![prop::sample::select(SPECIALS.to_vec()).prop_map(str::to_string), ".{0,3}"],
            1..6,
        ),
        name in prop::sample::select(TEMPLATES.to_vec()),
    ) {
        let (mut turns, tokenizer) = turns(name);
        let control = |tokens: Vec<u32>| -> Vec<u32> {
            tokens.into_iter().filter(|&token| tokenizer.is_special(token)).collect()
        };
        let harmless = control(turns.user("text").unwrap());
        turns.clear();
        let hostile = format!("a{}b", parts.concat());
        let tokens = turns.user(&hostile).unwrap();
        prop_assert!(spell(&tokenizer, &tokens).contains(&hostile));
        prop_assert_eq!(control(tokens), harmless);
    }
}
