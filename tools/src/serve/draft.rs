//! Messages for the template, put together from the blocks and items of the interfaces that split an answer into several.

use serde_json::{Value, json};

/// The text of a block's content: of texts, search results, documents, outputs of programs and references to tools.
pub fn text_of(content: &Value) -> String {
    const TEXTS: [&str; 13] = [
        "text",
        "refusal",
        "title",
        "url",
        "tool_name",
        "stdout",
        "stderr",
        "error_code",
        "data",
        "source",
        "content",
        "output",
        "tool_references",
    ];
    let texts: Vec<String> = match content {
        Value::String(text) => return text.clone(),
        Value::Array(blocks) => blocks.iter().map(text_of).collect(),
        Value::Object(_) if is_image(content) => return "[image]".into(),
        Value::Object(block) if content["type"] != "base64" => TEXTS
            .iter()
            .filter_map(|key| block.get(*key))
            .map(text_of)
            .collect(),
        _ => Vec::new(),
    };
    let texts: Vec<String> = texts.into_iter().filter(|text| !text.is_empty()).collect();
    texts.join("\n")
}

/// Whether a block holds an image.
pub fn is_image(block: &Value) -> bool {
    ["image", "input_image", "image_url"]
        .iter()
        .any(|kind| block["type"] == *kind)
}

/// A function's call in a message.
pub fn call(id: &Value, name: &Value, arguments: &Value) -> Value {
    json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } })
}

/// A function's result as a message.
pub fn result(id: &Value, content: &Value) -> Value {
    json!({ "role": "tool", "tool_call_id": id, "content": text_of(content) })
}

/// A message under construction.
#[derive(Default)]
pub struct Draft {
    pub texts: Vec<String>,
    pub images: usize,
    pub thought: String,
    pub calls: Vec<Value>,
}

impl Draft {
    /// Adds a block of text or an image.
    pub fn add(&mut self, block: &Value) {
        match is_image(block) {
            true => self.images += 1,
            false => self.texts.push(text_of(block)),
        }
    }

    /// Whether the message has no content, perhaps a thought.
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty() && self.calls.is_empty() && self.images == 0
    }

    /// Moves the message to `all` unless it is empty.
    pub fn finish(&mut self, role: &str, all: &mut Vec<Value>) {
        let draft = std::mem::take(self);
        if draft.is_empty() {
            return;
        }
        let mut message = json!({ "role": role, "content": draft.texts.join("\n") });
        if draft.images > 0 {
            let text = json!({ "type": "text", "text": message["content"] });
            let images = std::iter::repeat_n(json!({ "type": "image_url" }), draft.images);
            message["content"] = std::iter::once(text).chain(images).collect();
        }
        if !draft.thought.is_empty() {
            message["reasoning_content"] = draft.thought.into();
        }
        if !draft.calls.is_empty() {
            message["tool_calls"] = draft.calls.into();
        }
        all.push(message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_tools_become_text_without_their_encrypted_parts() {
        let found = json!([
            {"type": "web_search_result", "title": "T", "url": "u", "encrypted_content": "zz"},
            {"type": "tool_reference", "tool_name": "g"},
            {"type": "code_execution_result", "stdout": "out", "stderr": "", "return_code": 0, "content": []},
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "doc"}},
            {"type": "image", "source": {"type": "base64", "data": "AAAA"}},
            {"type": "document", "source": {"type": "base64", "data": "AAAA"}},
        ]);
        assert_eq!(text_of(&found), "T\nu\ng\nout\ndoc\n[image]");
    }
}
