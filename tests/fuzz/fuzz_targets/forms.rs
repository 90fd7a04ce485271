//! Constraints on answers: JSON schemas, regular expressions after a `/`, grammars after a `%`.

use std::sync::Arc;

use waterline::{Constraints, Grammar, Model};

thread_local! {
    static CONSTRAINTS: Arc<Constraints> = {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tools/model/waterline-chat.gguf");
        let model = Model::open(file);
        model.expect("the model").constraints().expect("constraints")
    };
}

/// If a constraint compiles, it guides an answer of up to 20 tokens, each the first or the last allowed token.
pub fn form(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return false;
    };
    let grammar = match (text.strip_prefix('/'), text.strip_prefix('%')) {
        (Some(regex), _) => Grammar::Regex(regex.into()),
        (_, Some(grammar)) => Grammar::Lark(grammar.into()),
        _ => match serde_json::from_str(text) {
            Ok(schema) => Grammar::JsonSchema(schema),
            Err(_) => return false,
        },
    };
    let Ok(mut form) = CONSTRAINTS.with(|constraints| constraints.compile(&grammar)) else {
        return false;
    };
    for step in 0..20 {
        let mut logits = vec![0.0f32; 4096];
        if form.apply(&mut logits).is_err() {
            break;
        }
        let is_allowed = |logit: &f32| *logit == 0.0;
        let token = match step % 2 {
            0 => logits.iter().position(is_allowed),
            _ => logits.iter().rposition(is_allowed),
        };
        let token = token.expect("an answer can go on or end") as u32;
        if form.take(token).is_err() {
            break;
        }
    }
    true
}

pub fn form_seeds() -> Vec<Vec<u8>> {
    let seeds = [
        r#"{"type":"object","properties":{"a":{"type":"integer","minimum":-5,"maximum":50},"b":{"enum":["x",7,null]}},"required":["a"],"additionalProperties":false}"#,
        r##"{"$defs":{"n":{"type":"object","properties":{"next":{"$ref":"#/$defs/n"}}}},"$ref":"#/$defs/n"}"##,
        r#"{"anyOf":[{"type":"string","pattern":"^[a-c]{1,4}-[0-9]{2}$"},{"type":"array","items":{"type":"number"},"minItems":1,"maxItems":3}]}"#,
        r#"{"type":"string","maxLength":9,"format":"date"}"#,
        r"/(yes|no)( because [a-z ]{3,20})?\.",
        "%start: \"a\" (B | c)+\nB: /[0-9]+/\nc: \"x\" | \"(\" c \")\"",
    ];
    seeds.map(|seed| seed.as_bytes().to_vec()).to_vec()
}
