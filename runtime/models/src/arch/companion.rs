//! Adds to a GGUF file the MTP block that llama.cpp writes to a separate file next to it, `mtp-*.gguf`.

use std::path::{Path, PathBuf};

use waterline_quant::gguf::{Gguf, Value};

use crate::error::Result;

/// Maximum number of files in a folder to try.
const MOST: usize = 64;

/// Adds the MTP block of a matching file next to `path`, if `gguf` has no such block.
pub(super) fn with_mtp_block(gguf: Gguf, path: &Path) -> Result<Gguf> {
    let Some(model) = Shape::new(&gguf).filter(|shape| shape.further == 0) else {
        return Ok(gguf);
    };
    for candidate in candidates(path) {
        let Ok(other) = Gguf::open(candidate) else {
            continue;
        };
        let fits = Shape::new(&other).is_some_and(|other| {
            other.further > 0
                && other.blocks.checked_sub(other.further) == Some(model.blocks)
                && (&other.architecture, other.width) == (&model.architecture, model.width)
        });
        if fits {
            let keys = format!("{}.", model.architecture);
            return Ok(gguf.with_block(other, &keys, &format!("blk.{}.", model.blocks))?);
        }
    }
    Ok(gguf)
}

/// Metadata in which the two files must agree.
struct Shape {
    architecture: String,
    blocks: u64,
    /// Blocks that predict further tokens.
    further: u64,
    width: u64,
}

impl Shape {
    fn new(gguf: &Gguf) -> Option<Shape> {
        let text = |key: &str| gguf.get(key).and_then(Value::as_str).map(str::to_string);
        let architecture = text("general.architecture")?;
        let number = |key: &str| {
            gguf.get(&format!("{architecture}.{key}"))
                .and_then(Value::as_u64)
        };
        Some(Shape {
            blocks: number("block_count")?,
            further: number("nextn_predict_layers").unwrap_or(0),
            width: number("embedding_length")?,
            architecture,
        })
    }
}

/// The files that may hold the block, starting with the names most like the model's.
fn candidates(path: &Path) -> Vec<PathBuf> {
    let name = |path: &Path| {
        let name = path.file_name().unwrap_or_default();
        name.to_string_lossy().to_lowercase()
    };
    let shared_name = name(path);
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let Ok(entries) = std::fs::read_dir(folder.unwrap_or(Path::new("."))) else {
        return Vec::new();
    };
    let files = entries.filter_map(|entry| entry.ok().map(|entry| entry.path()));
    let mut found: Vec<(usize, PathBuf)> = files
        .filter_map(|file| {
            let name = name(&file);
            let rest = name
                .strip_prefix("mtp-")
                .filter(|rest| rest.ends_with(".gguf"))?;
            let alike = rest.bytes().zip(shared_name.bytes());
            Some((alike.take_while(|(a, b)| a == b).count(), file))
        })
        .collect();
    found.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    found.truncate(MOST);
    found.into_iter().map(|(_, file)| file).collect()
}
