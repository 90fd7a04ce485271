//! The shapes that `synth` can write, one for each file under `presets/`.
//!
//! A file names the paper and table of its shape, and holds a model's description as [`ModelSpec`]'s JSON.
//! Repeated layers are written once: `{ "repeat": 6, "of": [..] }` repeats the layers in the list six times.
//! The list may contain repeats.

use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::{Map, Value};
use waterline::ModelSpec;

use crate::error::{Error, Result};

/// A named model shape.
#[derive(Debug, Clone, Copy)]
pub struct Preset {
    /// The name for `synth`: the model and its number of parameters, or `tiny`.
    pub name: &'static str,
}

/// The description of a preset and the source of its shape.
#[derive(Deserialize)]
pub struct About {
    /// The description.
    pub about: String,
    /// The paper, if there is one.
    pub paper: Option<String>,
    /// The source of the numbers, and exceptions.
    pub table: String,
}

const fn preset(name: &'static str) -> Preset {
    Preset { name }
}

/// Name and length of each file, in the order of their texts. The texts are compressed (deflate) in the program.
static TABLE: &[(&str, usize)] = include!(concat!(env!("OUT_DIR"), "/presets.rs"));
static DEFLATED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/presets"));

static TEXTS: LazyLock<String> = LazyLock::new(|| {
    let bytes = miniz_oxide::inflate::decompress_to_vec(DEFLATED).expect("what the build wrote");
    String::from_utf8(bytes).expect("presets are text")
});

/// All presets.
pub const PRESETS: &[Preset] = &[
    preset("lalte-1.4b"),
    preset("lalte-0.4b"),
    preset("lalte-mlp-1.4b"),
    preset("lalte-mlp-0.4b"),
    preset("lansa-1.4b"),
    preset("lansa-0.4b"),
    preset("gdn-swa-1.4b"),
    preset("gdn-swa-0.4b"),
    preset("gdn-attn-1.4b"),
    preset("gdn-attn-0.4b"),
    preset("lte-1.3b"),
    preset("lte-340m"),
    preset("nsa-1.3b"),
    preset("nsa-0.4b"),
    preset("gdn-1.3b"),
    preset("gdn-0.4b"),
    preset("gdn2-1.3b"),
    preset("gdn-7b"),
    preset("transformer-1.3b"),
    preset("transformer-340m"),
    preset("swa-1.3b"),
    preset("gla-1.3b"),
    preset("retnet-1.3b"),
    preset("hgrn2-1.3b"),
    preset("gsa-1.3b"),
    preset("gsa-2.7b"),
    preset("gsa-340m"),
    preset("gsa-7b"),
    preset("raven-1.3b"),
    preset("sla-gla-1.3b"),
    preset("sla-gla-340m"),
    preset("sla-gla-195m"),
    preset("sla-gla-110m"),
    preset("sla-gla-100m"),
    preset("sla-retnet-1.3b"),
    preset("sla-retnet-340m"),
    preset("sla-gdn-1.3b"),
    preset("sla-gdn-340m"),
    preset("sse-n4k1-1.3b"),
    preset("sse-n16k1-1.3b"),
    preset("sse-gdn-n4k1-1.3b"),
    preset("sse-600m"),
    preset("sse-2b"),
    preset("sse-h-600m"),
    preset("sse-h-2b"),
    preset("sse-12b"),
    preset("mom-m4k2-1.6b"),
    preset("mom-m16k2-2.8b"),
    preset("mom-gla-m4k1-0.8b"),
    preset("mamba-1.4b"),
    preset("mamba2-1.3b"),
    preset("mamba3-1.4b"),
    preset("samba-1.4b"),
    preset("hax-mamba-790m"),
    preset("hax-mamba-130m"),
    preset("hax-mamba2-790m"),
    preset("qwen3.5-0.8b"),
    preset("qwen3.5-2b"),
    preset("qwen3.5-4b"),
    preset("qwen3.5-9b"),
    preset("qwen3.5-moe-3b"),
    preset("lfm2-350m"),
    preset("lfm2-1.2b"),
    preset("lfm3-1.7b"),
    preset("jamba-5b"),
    preset("kimi-linear-4.6b"),
    preset("zamba2-2.7b"),
    preset("falcon-h1-0.5b"),
    preset("granite-4.0-h-350m"),
    preset("granite-4.0-h-1.5b"),
    preset("nemotron-3-nano-4b"),
    preset("recurrentgemma-2.7b"),
    preset("rwkv6-1.6b"),
    preset("rwkv7-0.4b"),
    preset("rwkv7-1.5b"),
    preset("lalte-tiny"),
    preset("lansa-tiny"),
    preset("gdn2-tiny"),
    preset("gdn-tiny"),
    preset("transformer-tiny"),
    preset("swa-tiny"),
    preset("gla-tiny"),
    preset("retnet-tiny"),
    preset("hgrn2-tiny"),
    preset("gsa-tiny"),
    preset("raven-tiny"),
    preset("sla-gla-tiny"),
    preset("sla-retnet-tiny"),
    preset("sla-gdn-tiny"),
    preset("sse-tiny"),
    preset("sse-gdn-tiny"),
    preset("sse-h-tiny"),
    preset("sse-windows-tiny"),
    preset("mom-tiny"),
    preset("mom-gla-tiny"),
    preset("mamba-tiny"),
    preset("mamba2-tiny"),
    preset("mamba3-tiny"),
    preset("hax-mamba-tiny"),
    preset("hax-mamba2-tiny"),
    preset("qwen3.5-tiny"),
    preset("qwen3.5-moe-tiny"),
    preset("lfm2-tiny"),
    preset("samba-tiny"),
    preset("recurrentgemma-tiny"),
    preset("rwkv7-tiny"),
];

/// Maximum layers of a model, so that a mistake in a `repeat` is an error instead of an hour of work.
const MOST_LAYERS: usize = 4096;

/// Finds the preset called `name`.
pub fn by_name(name: &str) -> Option<Preset> {
    PRESETS.iter().find(|preset| preset.name == name).copied()
}

impl Preset {
    /// The description and the source.
    pub fn about(&self) -> Result<About> {
        serde_json::from_str(self.text()?).map_err(|e| self.wrong(e))
    }

    /// The model's dimensions.
    pub fn spec(&self) -> Result<ModelSpec> {
        spec(&self.file(), self.text()?)
    }

    /// The text of the preset's file.
    fn text(&self) -> Result<&'static str> {
        let at = TABLE.iter().position(|&(name, _)| name == self.name);
        let at = at.ok_or_else(|| self.wrong("there is no such file"))?;
        let start: usize = TABLE[..at].iter().map(|(_, length)| length).sum();
        Ok(&TEXTS[start..][..TABLE[at].1])
    }

    fn file(&self) -> String {
        format!("{}.json", self.name)
    }

    fn wrong(&self, reason: impl ToString) -> Error {
        Error::input(self.file(), reason.to_string())
    }
}

/// Parses dimensions in the format of the files under `presets/`; `file` is named in errors.
pub fn spec(file: &str, text: &str) -> Result<ModelSpec> {
    let wrong = |reason: String| Error::input(file, reason);
    let mut fields: Map<String, Value> =
        serde_json::from_str(text).map_err(|e| wrong(e.to_string()))?;
    for key in ["about", "paper", "table"] {
        fields.remove(key);
    }
    let Some(Value::Array(pattern)) = fields.remove("layers") else {
        return Err(wrong("layers: expected a list".into()));
    };
    let mut layers = Vec::new();
    unroll(&pattern, &mut layers).map_err(wrong)?;
    fields.insert("layers".into(), Value::Array(layers));
    Ok(ModelSpec::from_json(file, &Value::Object(fields))?)
}

/// Appends the layers of a pattern. Returns the reason if that fails.
fn unroll(pattern: &[Value], layers: &mut Vec<Value>) -> Result<(), String> {
    for item in pattern {
        match item.get("of").and_then(Value::as_array) {
            Some(inner) => {
                let times = item["repeat"].as_u64();
                let times = times.ok_or("repeat: expected a number of repetitions")?;
                for _ in 0..times.min(MOST_LAYERS as u64 + 1) {
                    unroll(inner, layers)?;
                }
            }
            None => layers.push(item.clone()),
        }
        if layers.len() > MOST_LAYERS {
            return Err(format!("layers: found more than {MOST_LAYERS}"));
        }
    }
    Ok(())
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
        let pattern =
            serde_json::json!([1, { "repeat": 2, "of": [{ "repeat": 2, "of": [2] }, 3] }]);
        let mut layers = Vec::new();
        unroll(pattern.as_array().unwrap(), &mut layers).unwrap();
        assert_eq!(
            Value::Array(layers),
            serde_json::json!([1, 2, 2, 3, 2, 2, 3])
        );
        let endless = serde_json::json!([{ "repeat": 1_000_000_000_000u64, "of": [1] }]);
        assert!(unroll(endless.as_array().unwrap(), &mut Vec::new()).is_err());
    }
}
