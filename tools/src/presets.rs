//! The shapes that `synth` can make: the files under `presets/`, one for each.
//!
//! A file says in which paper and table its shape stands, and holds a model's description in the words of
//! [`ModelSpec`]'s own JSON. Layers that come again are written once: `{ "repeat": 6, "of": [..] }` stands for
//! six times the layers in the list, which may hold repeats themselves.

use serde::Deserialize;
use serde_json::{Map, Value};
use waterline::ModelSpec;

use crate::error::{Error, Result};

/// A model's shape by name.
#[derive(Debug, Clone, Copy)]
pub struct Preset {
    /// What `synth` calls it: the model and its number of parameters, or `tiny`.
    pub name: &'static str,
    text: &'static str,
}

/// What a preset is and where its shape stands.
#[derive(Deserialize)]
pub struct About {
    /// What it is.
    pub about: String,
    /// The paper, if there is one.
    pub paper: Option<String>,
    /// Where the numbers stand, and which are not from there.
    pub table: String,
}

const fn file(name: &'static str, text: &'static str) -> Preset {
    Preset { name, text }
}

/// Every preset.
pub const PRESETS: &[Preset] = &[
    file("lalte-1.4b", include_str!("../presets/lalte-1.4b.json")),
    file("lalte-0.4b", include_str!("../presets/lalte-0.4b.json")),
    file(
        "lalte-mlp-1.4b",
        include_str!("../presets/lalte-mlp-1.4b.json"),
    ),
    file(
        "lalte-mlp-0.4b",
        include_str!("../presets/lalte-mlp-0.4b.json"),
    ),
    file("lansa-1.4b", include_str!("../presets/lansa-1.4b.json")),
    file("gdn-swa-1.4b", include_str!("../presets/gdn-swa-1.4b.json")),
    file(
        "gdn-attn-1.4b",
        include_str!("../presets/gdn-attn-1.4b.json"),
    ),
    file(
        "gdn-attn-0.4b",
        include_str!("../presets/gdn-attn-0.4b.json"),
    ),
    file("lte-1.3b", include_str!("../presets/lte-1.3b.json")),
    file("nsa-1.3b", include_str!("../presets/nsa-1.3b.json")),
    file("gdn-1.3b", include_str!("../presets/gdn-1.3b.json")),
    file("gdn2-1.3b", include_str!("../presets/gdn2-1.3b.json")),
    file("gdn-7b", include_str!("../presets/gdn-7b.json")),
    file(
        "transformer-1.3b",
        include_str!("../presets/transformer-1.3b.json"),
    ),
    file("swa-1.3b", include_str!("../presets/swa-1.3b.json")),
    file("gla-1.3b", include_str!("../presets/gla-1.3b.json")),
    file("retnet-1.3b", include_str!("../presets/retnet-1.3b.json")),
    file("gsa-1.3b", include_str!("../presets/gsa-1.3b.json")),
    file("gsa-2.7b", include_str!("../presets/gsa-2.7b.json")),
    file("sla-gla-1.3b", include_str!("../presets/sla-gla-1.3b.json")),
    file("sla-gla-340m", include_str!("../presets/sla-gla-340m.json")),
    file(
        "sla-retnet-1.3b",
        include_str!("../presets/sla-retnet-1.3b.json"),
    ),
    file(
        "sla-retnet-340m",
        include_str!("../presets/sla-retnet-340m.json"),
    ),
    file("sla-gdn-1.3b", include_str!("../presets/sla-gdn-1.3b.json")),
    file("sla-gdn-340m", include_str!("../presets/sla-gdn-340m.json")),
    file(
        "sse-n4k1-1.3b",
        include_str!("../presets/sse-n4k1-1.3b.json"),
    ),
    file(
        "sse-n16k1-1.3b",
        include_str!("../presets/sse-n16k1-1.3b.json"),
    ),
    file(
        "sse-gdn-n4k1-1.3b",
        include_str!("../presets/sse-gdn-n4k1-1.3b.json"),
    ),
    file("sse-600m", include_str!("../presets/sse-600m.json")),
    file("sse-2b", include_str!("../presets/sse-2b.json")),
    file("sse-h-600m", include_str!("../presets/sse-h-600m.json")),
    file("sse-h-2b", include_str!("../presets/sse-h-2b.json")),
    file("sse-12b", include_str!("../presets/sse-12b.json")),
    file(
        "mom-m4k2-1.6b",
        include_str!("../presets/mom-m4k2-1.6b.json"),
    ),
    file(
        "mom-m16k2-2.8b",
        include_str!("../presets/mom-m16k2-2.8b.json"),
    ),
    file("mamba-1.4b", include_str!("../presets/mamba-1.4b.json")),
    file("mamba2-1.3b", include_str!("../presets/mamba2-1.3b.json")),
    file(
        "hax-mamba-790m",
        include_str!("../presets/hax-mamba-790m.json"),
    ),
    file(
        "hax-mamba2-790m",
        include_str!("../presets/hax-mamba2-790m.json"),
    ),
    file("qwen3.5-0.8b", include_str!("../presets/qwen3.5-0.8b.json")),
    file("qwen3.5-2b", include_str!("../presets/qwen3.5-2b.json")),
    file("qwen3.5-4b", include_str!("../presets/qwen3.5-4b.json")),
    file("qwen3.5-9b", include_str!("../presets/qwen3.5-9b.json")),
    file(
        "qwen3.5-moe-3b",
        include_str!("../presets/qwen3.5-moe-3b.json"),
    ),
    file("lfm2-350m", include_str!("../presets/lfm2-350m.json")),
    file("lfm2-1.2b", include_str!("../presets/lfm2-1.2b.json")),
    file("lfm3-1.7b", include_str!("../presets/lfm3-1.7b.json")),
    file("jamba-5b", include_str!("../presets/jamba-5b.json")),
    file(
        "kimi-linear-4.6b",
        include_str!("../presets/kimi-linear-4.6b.json"),
    ),
    file("zamba2-2.7b", include_str!("../presets/zamba2-2.7b.json")),
    file(
        "falcon-h1-0.5b",
        include_str!("../presets/falcon-h1-0.5b.json"),
    ),
    file(
        "granite-4.0-h-350m",
        include_str!("../presets/granite-4.0-h-350m.json"),
    ),
    file(
        "granite-4.0-h-1.5b",
        include_str!("../presets/granite-4.0-h-1.5b.json"),
    ),
    file(
        "nemotron-3-nano-4b",
        include_str!("../presets/nemotron-3-nano-4b.json"),
    ),
    file(
        "recurrentgemma-2.7b",
        include_str!("../presets/recurrentgemma-2.7b.json"),
    ),
    file("rwkv7-0.4b", include_str!("../presets/rwkv7-0.4b.json")),
    file("rwkv7-1.5b", include_str!("../presets/rwkv7-1.5b.json")),
    file("lalte-tiny", include_str!("../presets/lalte-tiny.json")),
    file("lansa-tiny", include_str!("../presets/lansa-tiny.json")),
    file("gdn2-tiny", include_str!("../presets/gdn2-tiny.json")),
    file("gdn-tiny", include_str!("../presets/gdn-tiny.json")),
    file(
        "transformer-tiny",
        include_str!("../presets/transformer-tiny.json"),
    ),
    file("swa-tiny", include_str!("../presets/swa-tiny.json")),
    file("gla-tiny", include_str!("../presets/gla-tiny.json")),
    file("retnet-tiny", include_str!("../presets/retnet-tiny.json")),
    file("gsa-tiny", include_str!("../presets/gsa-tiny.json")),
    file("sla-gla-tiny", include_str!("../presets/sla-gla-tiny.json")),
    file(
        "sla-retnet-tiny",
        include_str!("../presets/sla-retnet-tiny.json"),
    ),
    file("sla-gdn-tiny", include_str!("../presets/sla-gdn-tiny.json")),
    file("sse-tiny", include_str!("../presets/sse-tiny.json")),
    file("sse-gdn-tiny", include_str!("../presets/sse-gdn-tiny.json")),
    file("sse-h-tiny", include_str!("../presets/sse-h-tiny.json")),
    file(
        "sse-windows-tiny",
        include_str!("../presets/sse-windows-tiny.json"),
    ),
    file("mom-tiny", include_str!("../presets/mom-tiny.json")),
    file("mamba-tiny", include_str!("../presets/mamba-tiny.json")),
    file("mamba2-tiny", include_str!("../presets/mamba2-tiny.json")),
    file(
        "hax-mamba-tiny",
        include_str!("../presets/hax-mamba-tiny.json"),
    ),
    file(
        "hax-mamba2-tiny",
        include_str!("../presets/hax-mamba2-tiny.json"),
    ),
    file("qwen3.5-tiny", include_str!("../presets/qwen3.5-tiny.json")),
    file(
        "qwen3.5-moe-tiny",
        include_str!("../presets/qwen3.5-moe-tiny.json"),
    ),
    file("lfm2-tiny", include_str!("../presets/lfm2-tiny.json")),
    file(
        "recurrentgemma-tiny",
        include_str!("../presets/recurrentgemma-tiny.json"),
    ),
    file("rwkv7-tiny", include_str!("../presets/rwkv7-tiny.json")),
];

/// The most layers of a model: a slip in a `repeat` is an error, not an hour.
const MOST_LAYERS: usize = 4096;

/// The preset called `name`.
pub fn by_name(name: &str) -> Option<Preset> {
    PRESETS.iter().find(|preset| preset.name == name).copied()
}

impl Preset {
    /// What it is.
    pub fn about(&self) -> Result<About> {
        serde_json::from_str(self.text).map_err(|e| self.wrong(e))
    }

    /// The model's dimensions.
    pub fn spec(&self) -> Result<ModelSpec> {
        let mut fields: Map<String, Value> =
            serde_json::from_str(self.text).map_err(|e| self.wrong(e))?;
        for key in ["about", "paper", "table"] {
            fields.remove(key);
        }
        let Some(Value::Array(pattern)) = fields.remove("layers") else {
            return Err(self.wrong("layers: expected a list"));
        };
        let mut layers = Vec::new();
        self.unroll(&pattern, &mut layers)?;
        fields.insert("layers".into(), Value::Array(layers));
        Ok(ModelSpec::from_json(self.name, &Value::Object(fields))?)
    }

    /// Appends the layers of a pattern.
    fn unroll(&self, pattern: &[Value], layers: &mut Vec<Value>) -> Result<()> {
        for item in pattern {
            match item.get("of").and_then(Value::as_array) {
                Some(inner) => {
                    let times = item["repeat"].as_u64();
                    let times =
                        times.ok_or_else(|| self.wrong("repeat: expected how many times"))?;
                    for _ in 0..times.min(MOST_LAYERS as u64 + 1) {
                        self.unroll(inner, layers)?;
                    }
                }
                None => layers.push(item.clone()),
            }
            if layers.len() > MOST_LAYERS {
                let reason = format!("layers: found more than {MOST_LAYERS}");
                return Err(self.wrong(reason));
            }
        }
        Ok(())
    }

    fn wrong(&self, reason: impl ToString) -> Error {
        Error::input(format!("{}.json", self.name), reason.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn presets_are_sound_and_as_large_as_their_names_say() {
        for preset in PRESETS {
            let spec = preset.spec().unwrap();
            spec.check(preset.name).unwrap();
            let parameters = spec.parameters() as f64;
            let (_, size) = preset.name.rsplit_once('-').unwrap();
            if size == "tiny" {
                assert!(parameters < 1e7, "{}: {parameters}", preset.name);
                continue;
            }
            assert!(preset.about().unwrap().table.len() > 20, "{}", preset.name);
            let (digits, unit) = size.split_at(size.len() - 1);
            let said = digits.parse::<f64>().unwrap() * if unit == "b" { 1e9 } else { 1e6 };
            // The last digit of a name may be rounded, as in 0.4b.
            let rounding = if unit == "b" { 5.5e7 } else { 0.0 };
            let off = (parameters - said).abs();
            let within = off < (0.12 * said).max(rounding);
            assert!(within, "{}: {parameters}", preset.name);
        }
    }

    #[test]
    fn every_file_is_listed_once() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("presets");
        let entries = std::fs::read_dir(folder).unwrap();
        let name = |entry: std::io::Result<std::fs::DirEntry>| {
            let path = entry.unwrap().path();
            path.file_stem().unwrap().to_str().unwrap().to_string()
        };
        let mut files: Vec<String> = entries.map(name).collect();
        let mut listed: Vec<&str> = PRESETS.iter().map(|preset| preset.name).collect();
        files.sort();
        listed.sort();
        assert_eq!(files, listed);
    }

    #[test]
    fn patterns_are_repeated_inside_out() {
        let preset = file("x", "");
        let pattern =
            serde_json::json!([1, { "repeat": 2, "of": [{ "repeat": 2, "of": [2] }, 3] }]);
        let mut layers = Vec::new();
        preset
            .unroll(pattern.as_array().unwrap(), &mut layers)
            .unwrap();
        assert_eq!(
            Value::Array(layers),
            serde_json::json!([1, 2, 2, 3, 2, 2, 3])
        );
        let endless = serde_json::json!([{ "repeat": 1_000_000_000_000u64, "of": [1] }]);
        assert!(
            preset
                .unroll(endless.as_array().unwrap(), &mut Vec::new())
                .is_err()
        );
    }
}
