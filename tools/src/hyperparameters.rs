//! Describes a layer's hyperparameters: `no bias` for `"bias": false`, `no rotary scaling` for `"rope_scaling": null`.

use serde_json::Value;

/// Readable words for names that are clear only to readers who know the file formats.
const WORDS: [(&str, &str); 11] = [
    ("head_dim", "head width"),
    ("value_dim", "value width"),
    ("kv_heads", "KV heads"),
    ("rope_theta", "rotary base"),
    ("rope_scaling", "rotary scaling"),
    ("rope_dim", "rotary values of a head"),
    ("norm_eps", "norm epsilon"),
    ("head_norm_eps", "head norm epsilon"),
    ("conv", "convolution taps"),
    ("conv_bias", "convolution bias"),
    ("retained", "retained set"),
];

/// Names for which `null` has a special meaning, with its description.
const ABSENT: [(&str, &str); 5] = [
    ("rope_theta", "no rotary positions"),
    ("rope_dim", "whole heads rotary"),
    ("head_norm_eps", "no head norms"),
    ("softmax_scale", "scores by the root of the width"),
    ("window", "the whole context"),
];

/// Describes the hyperparameters of a layer, from its JSON without the mixer's name.
pub fn in_words(layer: &Value) -> String {
    let fields = layer.as_object().into_iter().flatten();
    let parts: Vec<String> = fields.map(|(key, value)| field(key, value)).collect();
    parts.join(", ")
}

fn field(key: &str, value: &Value) -> String {
    let find = |table: &[(&str, &'static str)]| {
        let found = table.iter().find(|(name, _)| *name == key);
        found.map(|(_, words)| words.to_string())
    };
    let words = find(&WORDS).unwrap_or_else(|| key.replace('_', " "));
    match value {
        Value::Null => find(&ABSENT).unwrap_or(format!("no {words}")),
        Value::Bool(false) => format!("no {words}"),
        Value::Bool(true) => words,
        Value::Object(_) => format!("{words} ({})", in_words(value)),
        Value::String(text) => format!("{words} {text}"),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(item).collect();
            format!("{words} {}", items.join(" "))
        }
        Value::Number(number) => format!("{words} {}", plain(&number.to_string())),
    }
}

fn item(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Object(_) => format!("({})", in_words(value)),
        other => plain(&other.to_string()).into(),
    }
}

/// Removes a zero fraction from a number.
fn plain(number: &str) -> &str {
    number.strip_suffix(".0").unwrap_or(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_not_there_is_said_in_words() {
        let layer = json!({
            "heads": 4, "window": null, "rope_theta": 1000000.0, "rope_scaling": null, "bias": false, "gate": true,
            "retained": { "capacity": 6, "policy": "attention" }, "taps": [3, 3],
        });
        let words = in_words(&layer);
        for part in [
            "heads 4",
            "the whole context",
            "rotary base 1000000",
            "no rotary scaling",
            "no bias",
            ", gate,",
            "retained set (capacity 6, policy attention)",
            "taps 3 3",
        ] {
            assert!(format!("{words},").contains(part), "{part}: {words}");
        }
        assert!(
            !words.contains("null") && !words.contains("false"),
            "{words}"
        );
    }
}
