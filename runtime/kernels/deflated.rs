//! Stores texts deflated in a program. This is a separate file because the build scripts of two crates include it.

use std::path::Path;
use std::{env, fs};

const LEVEL: u8 = 10;

/// Writes the files that a crate includes: file names and lengths as Rust code to `NAME.rs`, the concatenated, deflated texts to `NAME`.
pub fn write(name: &str, all: impl IntoIterator<Item = (String, String)>) {
    let (mut table, mut texts) = (String::new(), String::new());
    for (file, text) in all {
        table += &format!("({file:?}, {}),\n", text.len());
        texts += &text;
    }
    let out = env::var("OUT_DIR").expect("cargo sets it");
    let write = |name: &str, bytes: &[u8]| {
        fs::write(Path::new(&out).join(name), bytes).expect("the folder can be written");
    };
    write(&format!("{name}.rs"), format!("&[{table}]").as_bytes());
    let deflated = miniz_oxide::deflate::compress_to_vec(texts.as_bytes(), LEVEL);
    write(name, &deflated);
}
